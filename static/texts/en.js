/**
 * English. Whoever translates copies this file: a text is a string, or a function of what it speaks about; figures
 * come to it written out in the reader's own way.
 */

const plural = new Intl.PluralRules("en");
/** The form of a word that goes with a count. */
const of = (count, one, other) => (plural.select(count) === "one" ? one : other);

export default {
  dir: "ltr",

  page: {
    conversations: "Conversations",
    newChat: "New chat",
    conversation: "Conversation",
    jump: "Jump to latest",
    dismiss: "Dismiss",
    beingRead: "Read aloud",
    close: "Close",
    skip: "Skip to the message box",
    title: (name) => `${name} · Tickwire`,
    notKept: (reason) => `This browser could not keep the conversation: ${reason}`,
    keepsNothing: "This browser keeps no conversations for this page: they last until it is closed.",
  },

  welcome: {
    greeting: "Say something.",
    what: "Tickwire runs the model itself.",
    how: "Every token reaches you the moment it exists.",
    suggestions: [
      { verb: "Explain", rest: "how a rainbow forms", prompt: "Explain in three sentences how a rainbow forms." },
      { verb: "Write", rest: "a short poem about the sea at night", prompt: "Write a short poem about the sea at night." },
      { verb: "List", rest: "five ideas for a rainy Sunday", prompt: "Give me five ideas for a rainy Sunday." },
      { verb: "Code", rest: "a Python function that reverses a string", prompt: "Write a Python function that reverses a string." },
    ],
  },

  theme: { theme: "Theme", system: "As the system", light: "Light", dark: "Dark" },

  link: {
    connecting: "Connecting",
    open: "Connected",
    waiting: "Not connected",
    refused: "Refused",
    closed: "Closed",
    tryNow: "Try now",
    lost: "The connection is lost.",
    unreachable: "The server cannot be reached.",
    nextTry: (what, seconds) => (seconds > 0 ? `${what} Next try in ${seconds} s.` : `${what} Trying again.`),
    refusedFor: (reason) => `The server refused the connection${reason ? `: ${reason}` : "."}`,
  },

  composer: {
    message: "Message",
    placeholder: "Write a message",
    send: "Send",
    sendKey: "Send (Enter)",
    stop: "Stop the answer",
    stopKey: "Stop (Esc)",
    hint: "Models make mistakes; check what matters.",
  },

  list: {
    earlier: "Earlier conversations",
    live: "answering",
    unread: "new answer",
    more: "More",
    moreOf: (title) => `More for “${title}”`,
    rename: "Rename",
    newTitle: "New title",
    pin: "Pin",
    unpin: "Unpin",
    markdown: "Export as Markdown",
    json: "Export as JSON",
    remove: "Delete",
    pinned: "Pinned",
    today: "Today",
    yesterday: "Yesterday",
    lastDays: "Last 7 days",
  },

  search: {
    open: "Search",
    title: "Search all chats",
    field: "Search",
    placeholder: "Words of a title or a message",
    results: "Results",
    reading: "Reading the chats …",
    none: "Nothing found.",
    found: (count, shown) => `${shown} ${of(count, "result", "results")}`,
    some: (shown, all) => `The first ${shown} of ${all} results`,
    you: "You",
    answer: "Answer",
  },

  transfer: {
    menu: "Import and export",
    import: "Import chats …",
    allMarkdown: "Export all as Markdown",
    allJson: "Export all as JSON",
  },

  removal: {
    title: "Delete this conversation?",
    what: "It is kept in this browser only, and cannot be brought back.",
    keep: "Keep",
    remove: "Delete",
  },

  question: { you: "You" },

  answer: {
    answer: "Answer",
    copy: "Copy answer",
    again: "Answer again",
    tryAgain: "Try again",
    waitingForConnection: "Waiting for the connection",
    waitingForToken: "Waiting for the first token",
    length: "Cut at the token limit",
    stopped: "Stopped",
    interrupted: "Interrupted",
    failed: "Failed",
    gone: "The rest of this answer is lost: the server does not have it any more.",
    tokens: (count, shown) => `${shown} ${of(count, "token", "tokens")}`,
    rate: (shown) => `${shown} tokens/s`,
    firstToken: (shown) => `first token ${shown}`,
    seconds: (shown) => `${shown} s`,
  },

  code: { copy: "Copy code", plain: "text", table: "Table", image: "Image" },
  keys: {
    title: "Keyboard",
    open: "Keys",
    chats: "Chats",
    here: "This chat",
    page: "The page",
    newChat: "New chat",
    search: "Search all chats",
    previousChat: "Previous chat",
    nextChat: "Next chat",
    removeChat: "Delete this chat",
    stop: "Stop the answer",
    regenerate: "Answer again",
    copy: "Copy the latest answer",
    previousBranch: "Previous version",
    nextBranch: "Next version",
    latestAnswer: "Go to the latest answer",
    jump: "Scroll to the end",
    message: "Go to the message box",
    sidebar: "Show or hide the chats",
    help: "This list of keys",
    // What is written on the keys of a keyboard.
    names: { mod: "Ctrl", alt: "Alt", shift: "Shift", enter: "Enter", escape: "Esc", backspace: "Backspace" },
  },

  // What is said of an answer and not seen.
  speech: {
    code: "Code.",
    table: "Table.",
    image: (alternative) => (alternative ? `Image: ${alternative}.` : "Image."),
    complete: "End of the answer.",
    branch: (place, count) => `Version ${place} of ${count}`,
  },

  copied: { yes: "Copied", no: "The browser did not allow copying" },
};
