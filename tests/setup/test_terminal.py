"""The terminal client against a scripted server: what goes over the wire, what the reader sees."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from websockets.protocol import State
from websockets.sync.server import ServerConnection, serve

from app.terminal import ChatError, Client, Ending, Options, printable, socket_url

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30
"""After this long without what it waits for, a test fails. No passing test waits for it."""

Reply = Callable[[ServerConnection], None]


class Server:
    """Answers each frame with the next reply of its script, and keeps the frames."""

    def __init__(self) -> None:
        self.frames: list[dict] = []
        self.script: deque[Reply] = deque()
        self.connections = 0
        self.keys: list[str | None] = []
        self.url = ""

    def handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        assert connection.request is not None
        self.keys.append(connection.request.headers.get("Authorization"))
        for message in connection:
            self.frames.append(json.loads(message))
            self.script.popleft()(connection)
            if connection.protocol.state is not State.OPEN:
                return  # what the client sent before it heard of the close goes unread


@pytest.fixture
def server() -> Iterator[Server]:
    scripted = Server()
    with serve(scripted.handle, "127.0.0.1", 0) as listening:
        host, port = listening.socket.getsockname()
        scripted.url = f"ws://{host}:{port}/v1/responses"
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield scripted
        listening.shutdown()
        thread.join()


def send(connection: ServerConnection, kind: str, **fields) -> None:
    connection.send(json.dumps({"type": kind, **fields}))


def created(response_id: str, *deltas: str) -> Reply:
    def reply(connection: ServerConnection) -> None:
        send(connection, "response.created", response={"id": response_id})
        for delta in deltas:
            send(connection, "response.output_text.delta", delta=delta)

    return reply


def answer(response_id: str, *deltas: str) -> Reply:
    def reply(connection: ServerConnection) -> None:
        created(response_id, *deltas)(connection)
        send(connection, "response.completed", response={"id": response_id, "status": "completed"})

    return reply


def incomplete(reason: str) -> Reply:
    return lambda connection: send(
        connection, "response.incomplete", response={"incomplete_details": {"reason": reason}}
    )


def refuse(code: str, message: str) -> Reply:
    return lambda connection: send(connection, "error", status=400, error={"code": code, "message": message})


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


@pytest.fixture
def client(server) -> Iterator[Client]:
    client = Client(Options(server.url))
    yield client
    client.close()


@pytest.fixture
def shown() -> list[str]:
    return []


def test_an_answer_is_shown_piece_by_piece(server, client, shown):
    server.script.append(answer("r1", "Hel", "lo"))
    assert client.ask("Hi", shown.append) is Ending.COMPLETE
    assert shown == ["Hel", "lo"]
    assert server.frames == [{"type": "response.create", "input": [user("Hi")]}]


def test_options_go_with_every_question(server, shown):
    server.script += [answer("r1", "a"), answer("r2", "b")]
    client = Client(Options(server.url, model="m", system="Be brief.", temperature=0.0))
    client.ask("1", shown.append)
    client.ask("2", shown.append)
    client.close()
    for frame in server.frames:
        assert (frame["model"], frame["instructions"], frame["temperature"]) == ("m", "Be brief.", 0.0)


def test_the_next_question_sends_only_itself(server, client, shown):
    server.script += [answer("r1", "a"), answer("r2", "b")]
    client.ask("1", shown.append)
    client.ask("2", shown.append)
    assert server.frames[1] == {"type": "response.create", "previous_response_id": "r1", "input": [user("2")]}
    assert server.connections == 1


def test_a_server_that_forgot_gets_everything(server, client, shown):
    server.script += [answer("r1", "a"), refuse("previous_response_not_found", "gone"), answer("r2", "b")]
    client.ask("1", shown.append)
    assert client.ask("2", shown.append) is Ending.COMPLETE
    assert server.frames[2] == {"type": "response.create", "input": [user("1"), assistant("a"), user("2")]}
    assert shown == ["a", "b"]


def test_a_server_that_forgets_again_is_not_asked_for_ever(server, client, shown):
    server.script += [refuse("previous_response_not_found", "gone")] * 2
    with pytest.raises(ChatError, match="gone"):
        client.ask("1", shown.append)


def test_a_connection_lost_between_questions_is_opened_again(server, client, shown):
    def then_close(connection: ServerConnection) -> None:
        answer("r1", "a")(connection)
        connection.close(1012, "restart")

    server.script += [then_close, answer("r2", "b")]
    client.ask("1", shown.append)
    assert client.ask("2", shown.append) is Ending.COMPLETE
    assert server.frames[-1] == {"type": "response.create", "input": [user("1"), assistant("a"), user("2")]}
    assert server.connections == 2


def test_a_connection_lost_in_an_answer_is_told_and_the_question_can_be_asked_again(server, client, shown):
    def break_off(connection: ServerConnection) -> None:
        created("r1", "par")(connection)
        connection.close(1013, "too \x1b busy")

    server.script += [break_off, answer("r2", "whole")]
    with pytest.raises(ChatError, match="closed it with code 1013 too ␛ busy"):
        client.ask("1", shown.append)
    client.ask("1", shown.append)
    assert server.frames[1] == {"type": "response.create", "input": [user("1")]}


def test_a_refused_question_leaves_the_conversation_as_it_was(server, client, shown):
    server.script += [answer("r1", "a"), refuse("x", "temperature: \x1b[2Jno"), answer("r3", "c")]
    client.ask("1", shown.append)
    with pytest.raises(ChatError, match=r"temperature: ␛\[2Jno"):
        client.ask("2", shown.append)
    client.ask("3", shown.append)
    assert server.frames[2] == {"type": "response.create", "previous_response_id": "r1", "input": [user("3")]}


def test_a_failed_answer_is_an_error(server, client, shown):
    server.script.append(
        lambda connection: send(
            connection, "response.failed", response={"error": {"message": "engine fault"}}
        )
    )
    with pytest.raises(ChatError, match="engine fault"):
        client.ask("1", shown.append)


@pytest.mark.parametrize("noise", ["not json", "[]", '{"type": "response.created", "response": {}}'])
def test_noise_is_an_error_that_the_chat_survives(server, client, shown, noise):
    server.script += [lambda connection: connection.send(noise), answer("r1", "a")]
    with pytest.raises(ChatError, match="no event"):
        client.ask("1", shown.append)
    assert client.ask("2", shown.append) is Ending.COMPLETE


def test_events_that_it_does_not_know_are_skipped(server, client, shown):
    def reply(connection: ServerConnection) -> None:
        send(connection, "response.stats", queue=3)
        answer("r1", "a")(connection)

    server.script.append(reply)
    assert client.ask("1", shown.append) is Ending.COMPLETE
    assert shown == ["a"]


def test_an_answer_cut_at_its_length_says_so(server, client, shown):
    def reply(connection: ServerConnection) -> None:
        created("r1", "a")(connection)
        incomplete("max_output_tokens")(connection)

    server.script.append(reply)
    assert client.ask("1", shown.append) is Ending.LENGTH


def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(server, client):
    """The stop is asked for once; the part that was shown stays in the conversation."""

    def end_a_token_later(connection: ServerConnection) -> None:
        send(connection, "response.output_text.delta", delta="ly")
        incomplete("cancelled")(connection)

    server.script += [created("r1", "par", "tial"), end_a_token_later, answer("r2", "b")]
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if text == "tial":
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    assert client.ask("1", show) is Ending.STOPPED
    assert signal.getsignal(signal.SIGINT) is before
    assert server.frames[1] == {"type": "response.cancel", "response_id": "r1"}
    assert client.ask("2", show) is Ending.COMPLETE
    assert server.frames[2] == {
        "type": "response.create",
        "input": [user("1"), assistant("partially"), user("2")],
    }


def test_a_second_ctrl_c_does_not_wait_for_the_server(server, client):
    server.script += [created("r1", "a"), incomplete("cancelled")]

    def show(text: str) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        client.ask("1", show)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 漢 🙂\n\tcode", "plain é 漢 🙂\n\tcode"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("a\x9b2Jb\x85c\x7f", "a\ufffd2Jb\ufffdc␡"),
        ("line\r\nover\rwritten\b", "line\nover␍written␈"),
    ],
)
def test_control_characters_are_shown_not_obeyed(text, expected):
    assert printable(text) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ws://h:1/v1/responses", "ws://h:1/v1/responses"),
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/responses"),
        ("https://chat.example/", "wss://chat.example/v1/responses"),
        ("wss://chat.example/other?x=1", "wss://chat.example/other?x=1"),
    ],
)
def test_the_pages_address_is_understood_too(given, expected):
    assert socket_url(given) == expected


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://h/", "ws://", "ws://[", "ws://h:99999", ""])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ChatError, match="--url"):
        Client(Options(url)).connect()


def run(
    server_url: str, *arguments: str, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "chat", "--url", server_url, *arguments],
        cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, env=os.environ | environ,
    )  # fmt: skip


def test_one_question_from_the_command_line(server):
    server.script.append(answer("r1", "Hel", "lo \x1b[31m"))
    done = run(server.url, "Hi", "--system", "Be brief.")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello ␛[31m\n", "")
    assert server.frames[0]["input"] == [user("Hi")]
    assert server.frames[0]["instructions"] == "Be brief."


def test_the_key_that_a_server_asks_for_goes_along(server):
    server.script += [answer("r1", "ok")] * 3
    run(server.url, "Hi", "--api-key", "k1", TICKWIRE_API_KEYS="k2,k3")
    run(server.url, "Hi", TICKWIRE_API_KEYS="k2,k3")
    run(server.url, "Hi", TICKWIRE_API_KEYS="")
    assert server.keys == ["Bearer k1", "Bearer k2", None]


def test_one_question_from_a_pipe(server):
    server.script.append(answer("r1", "ok"))
    done = run(server.url, stdin="two\nlines\n")
    assert (done.returncode, done.stdout) == (0, "ok\n")
    assert server.frames[0]["input"] == [user("two\nlines\n")]


def test_an_empty_pipe_is_an_error(server):
    done = run(server.url, stdin=" \n")
    assert (done.returncode, done.stderr) == (1, "tickwire: the prompt is empty\n")


def test_a_refusal_is_exit_code_1(server):
    server.script.append(refuse("model_not_found", "no such model"))
    done = run(server.url, "Hi")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "tickwire: no such model\n")


def test_no_server_says_how_to_start_one(server):
    done = run("ws://127.0.0.1:1/v1/responses", "Hi")
    assert done.returncode == 1
    assert "no server at ws://127.0.0.1:1/v1/responses" in done.stderr
    assert "tickwire serve" in done.stderr
    assert "Traceback" not in done.stderr


class Terminal:
    """`tickwire chat` in a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        pid, self.fd = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.execve(
                sys.executable,
                [sys.executable, "-m", "app.cli", "chat", "--url", url],
                {**os.environ, "TERM": "dumb"},
            )
        self.pid = pid
        self.output = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def read(self) -> bool:
        """Read what there is into `output`; False at its end."""
        ready, _, _ = select.select([self.fd], [], [], PATIENCE_S)
        assert ready, f"nothing more came after {self.output!r}"
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self.output += data.decode()
        return bool(data)

    def wait_for(self, text: str) -> None:
        """Read until `text` came; the output begins anew after it."""
        while text not in self.output:
            assert self.read(), f"ended with {self.output!r}"
        self.output = self.output.partition(text)[2]

    def exit_code(self) -> int:
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_conversation_in_a_terminal(server):
    server.script += [
        answer("r1", "One"),
        created("r2", "endless"),
        incomplete("cancelled"),
        answer("r3", "Three"),
    ]
    terminal = Terminal(server.url)
    terminal.wait_for("> ")
    terminal.type("first\n")
    terminal.wait_for("One")
    terminal.wait_for("> ")
    terminal.type("\nsecond\n")
    terminal.wait_for("endless")
    terminal.type("\x03")
    terminal.wait_for("tickwire: stopped")
    terminal.wait_for("> ")
    terminal.type("third\n")
    terminal.wait_for("Three")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    assert [frame["type"] for frame in server.frames] == [
        "response.create", "response.create", "response.cancel", "response.create",
    ]  # fmt: skip
    assert [message["content"] for message in server.frames[3]["input"]] == [
        "first", "One", "second", "endless", "third",
    ]  # fmt: skip


def test_ctrl_c_at_the_prompt_leaves(server):
    terminal = Terminal(server.url)
    terminal.wait_for("> ")
    # The line's end wakes the prompt if the signal came just before it began to wait.
    terminal.type("\x03\n")
    assert terminal.exit_code() == 0
    assert server.frames == []


def test_a_terminal_without_a_server_does_not_even_prompt():
    terminal = Terminal("ws://127.0.0.1:1/v1/responses")
    terminal.wait_for("tickwire serve")
    assert terminal.exit_code() == 1
