/**
 * English, and the pattern for every other language.
 *
 * Whoever translates the page copies this file to `texts/<code>.js`, translates what stands in quotes, says
 * `dir: "rtl"` where lines run from right to left, and lists it in `texts.js`; who reads that language gets it by
 * himself. A text is a string, or a function of what it speaks about; figures come to it written out in the reader's
 * own way. A text that is missing is an error, so that none is forgotten.
 */

const plural = new Intl.PluralRules("en");
/** The form of a word that goes with a count. */
const of = (count, one, other) => (plural.select(count) === "one" ? one : other);
const ordinals = new Intl.PluralRules("en", { type: "ordinal" });
const place = (number) => `${number}${{ one: "st", two: "nd", few: "rd", other: "th" }[ordinals.select(number)]}`;

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
    notLoaded: "This could not be loaded. Please try again.",
    keepsNothing: "This browser keeps no conversations for this page: they last until it is closed.",
  },

  welcome: {
    greeting: "Say something.",
    what: "Tickwire runs the model itself.",
    how: "Every token reaches you the moment it exists.",
    suggestions: [
      {
        verb: "Explain",
        rest: "how a rainbow forms",
        prompt: "Explain in three sentences how a rainbow forms.",
      },
      {
        verb: "Write",
        rest: "a short poem about the sea at night",
        prompt: "Write a short poem about the sea at night.",
      },
      {
        verb: "List",
        rest: "five ideas for a rainy Sunday",
        prompt: "Give me five ideas for a rainy Sunday.",
      },
      {
        verb: "Code",
        rest: "a Python function that reverses a string",
        prompt: "Write a Python function that reverses a string.",
      },
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
    enterKey: "Enter the key",
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
    isPinned: "Pinned",
    isUnpinned: "Not pinned any more",
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
    fileName: "Tickwire chats",
    system: "System prompt",
    title: "Import chats",
    drop: "Drop to import chats",
    formats: "Exports of Tickwire, ChatGPT, Open WebUI and llama.cpp",
    reading: (name) => `Reading ${name}`,
    stop: "Stop",
    stopped: "Stopped: what had been read by then is here.",
    added: (count, shown) => `${shown} ${of(count, "chat", "chats")} added`,
    known: (count, shown) => `${shown} already here`,
    empty: (count, shown) => `${shown} ${of(count, "chat", "chats")} without any text`,
    tooLong: (count, shown) => `${shown} ${of(count, "chat was", "chats were")} left out: more than 10,000 messages`,
    broken: (count, shown) =>
      `${shown} ${of(count, "chat", "chats")} could not be read: the file is damaged or cut off there`,
    foreign: (count, shown) => `${shown} ${of(count, "entry was", "entries were")} no chat`,
    leftOut: (count, shown) =>
      `${shown} ${of(count, "message or picture", "messages or pictures")} left out: only text can be kept`,
    not: {
      zip: () => "This is a zip archive. Unpack it, and choose the JSON in it: of ChatGPT, conversations.json.",
      notJson: () => "This is no JSON. Chats come in from exports of Tickwire, ChatGPT, Open WebUI and llama.cpp.",
      foreign: (shape) =>
        `This JSON holds no chats: found ${shape || "nothing with a name"}. ` +
        "Chats come in from exports of Tickwire, ChatGPT, Open WebUI and llama.cpp.",
      nothing: () => "There are no chats in this file.",
      tooLarge: () => "This file is larger than 500 MB, more than a browser can hold as one text.",
    },
  },

  removal: {
    title: "Delete this conversation?",
    what: "It is kept in this browser only, and cannot be brought back.",
    following: "What follows it goes, too. It is kept in this browser only, and cannot be brought back.",
    keep: "Keep",
    remove: "Delete",
    done: "Deleted",
  },

  question: {
    you: "You",
    copy: "Copy question",
    edit: "Edit question",
    field: "Question to ask instead",
    send: "Send",
    cancel: "Cancel",
    remove: "Delete question",
    removal: "Delete this question?",
  },

  answer: {
    answer: "Answer",
    copy: "Copy answer",
    again: "Answer again",
    tryAgain: "Try again",
    continue: "Continue",
    remove: "Delete answer",
    removal: "Delete this answer?",
    waitingForConnection: "Waiting for the connection",
    waitingForToken: "Waiting for the first token",
    queued: (number) => (number === 1 ? "Next in the queue" : `${place(number)} in the queue`),
    reading: (part) => (part ? `Reading your message: ${part}` : "Reading your message"),
    length: "Cut at the token limit",
    full: "Cut because the context is full",
    stopped: "Stopped",
    interrupted: "Interrupted",
    failed: "Failed",
    gone: "The rest of this answer is lost: the server does not have it any more.",
    tokens: (count, shown) => `${shown} ${of(count, "token", "tokens")}`,
    rate: (shown) => `${shown} tokens/s`,
    firstToken: (shown) => `first token ${shown}`,
    continued: "continued",
    prompt: (count, shown, cached) =>
      `${shown} prompt ${of(count, "token", "tokens")}${cached ? `, ${cached} cached` : ""}`,
    seconds: (shown) => `${shown} s`,
  },

  branches: {
    question: (number, count) => `Question ${number} of ${count}`,
    answer: (number, count) => `Answer ${number} of ${count}`,
    short: (number, count) => `${number}/${count}`,
    previous: { question: "Previous question", answer: "Previous answer" },
    next: { question: "Next question", answer: "Next answer" },
  },

  context: {
    enough: (used, limit) => `${used} of ${limit} tokens`,
    little: (used, limit, left) => `${left} of ${limit} tokens left`,
    full: (used, limit) => `All ${limit} tokens used`,
    short: {
      enough: (part) => part,
      little: (part, left) => `${left} left`,
      full: () => "Full",
    },
    sentence: (used, limit, part, left) => `Context: ${used} of ${limit} tokens used (${part}), ${left} left`,
  },

  setup: {
    thisChat: "This chat",
    newChats: "New chats",
    forNextQuestion: "Holds from the next question on.",
    forNewChats: "New chats begin with this.",
    useForNew: "Use for new chats",
    model: "Model",
    ownModel: (name) => (name ? `The server’s choice (${name})` : "The server’s choice"),
    system: "System prompt",
    noSystem: "What the model is told before all else",
    more: "More about sampling",
    rangesUnknown: "The server has not said yet what it allows.",
    standard: (value) => `Server’s default: ${value}.`,
    reset: (name) => `Back to the server’s default: ${name}`,
    slider: (name) => `${name}, slider`,
    notAllowed: (got, allowed) => `Got ${got}. Allowed is ${allowed}.`,
    allowed: {
      whole: (low, high) => `a whole number from ${low} to ${high}`,
      number: (low, high) => `a number from ${low} to ${high}`,
      above: (low, high) => `a number above ${low} and at most ${high}`,
    },
    tooMany: (got, most) => `Got ${got} lines. Allowed are at most ${most}.`,
    tooLong: (got, most) => `Got a line of ${got} characters. Allowed are at most ${most}.`,
  },

  sampling: {
    temperature: "Temperature",
    top_p: "Top p",
    min_p: "Min p",
    top_k: "Top k",
    max_output_tokens: "Longest answer, in tokens",
    repetition_penalty: "Repetition penalty",
    presence_penalty: "Presence penalty",
    frequency_penalty: "Frequency penalty",
    seed: "Seed",
    stop: "Stop strings",
    help: {
      temperature: "Low keeps to likely words, high dares unlikely ones; 0 always takes the likeliest.",
      top_p: "Chooses among the likeliest words that together have this probability.",
      min_p: "Leaves out what is less likely than this part of the likeliest.",
      top_k: "Chooses among this many of the likeliest; 0 among all.",
      max_output_tokens: "Cuts the answer there.",
      repetition_penalty: "Above 1 makes less likely whatever was said before, in question or answer.",
      presence_penalty: "Above 0 makes less likely what the answer already holds.",
      frequency_penalty: "The same, once for each time.",
      seed: "With the same seed the same question gets the same answer.",
      stop: "The answer ends before one of these. One a line; \\n is a line break.",
    },
    without: { max_output_tokens: "what fits", seed: "random", stop: "none" },
  },

  preset: {
    preset: "Preset",
    balanced: "Balanced",
    precise: "Precise",
    lively: "Lively",
    server: "Server’s defaults",
    changed: "Changed",
    own: "My presets",
    saveAs: "Save as …",
    rename: "Rename",
    delete: "Delete",
    name: "Name of the preset",
    save: "Save",
    cancel: "Cancel",
  },

  settings: {
    title: "Settings",
    open: (preset) => `Settings: ${preset}`,
    close: "Close settings",
    browser: "This browser",
    warmUp: "Warm up while typing",
    warmUpHelp: "The server reads what you write before you send it, so that the answer begins at once.",
    key: "API key",
    keyHelp: "For a server that asks for one. It is kept in this browser only.",
    useKey: "Use",
    forgetKey: "Forget the key",
    noKey: "This server asks for an API key.",
    wrongKey: "This server does not take this key.",
    kept: "Your chats",
    used: (shown) => `${shown} are kept here.`,
    keptForGood: "The browser clears them only when you tell it to.",
    keptForNow: "If it runs out of room, the browser may clear them.",
    persist: "Keep them for good",
    notPersisted: "The browser did not promise to keep them. It often does once the page is used more.",
    exportAll: "Export all",
    removeAll: "Delete all chats",
    removal: "Delete all chats?",
    removalWhat: (count, shown) => `${shown} ${of(count, "chat", "chats")}`,
  },

  code: { copy: "Copy code", plain: "text", table: "Table", image: "Image" },
  keys: {
    title: "Keyboard",
    chats: "Chats",
    here: "This chat",
    page: "The page",
    newChat: "New chat",
    search: "Search all chats",
    previousChat: "Previous chat",
    nextChat: "Next chat",
    rename: "Rename this chat",
    pin: "Pin or unpin this chat",
    removeChat: "Delete this chat",
    stop: "Stop the answer",
    regenerate: "Answer again",
    continue: "Go on with the answer",
    edit: "Ask the last question anew",
    copy: "Copy the latest answer",
    previousBranch: "Previous version",
    nextBranch: "Next version",
    latestAnswer: "Go to the latest answer",
    jump: "Scroll to the end",
    message: "Go to the message box",
    sidebar: "Show or hide the chats",
    engine: "The engine, and back",
    settings: "Settings",
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
  },

  engine: {
    title: "Engine",
    link: "Engine",
    heading: "Inside the engine",
    what: "One model answers everybody at once. It works in ticks: in each, every running answer gets its next token.",
    back: "Back to the chat",
    ms: (shown) => `${shown} ms`,
    of: (shown) => `of ${shown}`,
    row: (letters, isMine) => (isMine ? `row ${letters}, yours` : `row ${letters}`),
    states: {
      working: "Working",
      idle: "Idle: nobody asks for anything, so no tick happens",
      away: "Not connected",
    },
    refused: (status) => `it answered with status ${status}`,
    away: (reason, hasPicture) =>
      `The engine cannot be seen${reason ? `: ${reason}` : ": the server does not answer"}.` +
      (hasPicture ? " This is the last that was seen of it." : ""),
    idle: "Nothing has run yet. Send it some work, and watch rows come and go.",
    figures: {
      rate: { name: "Tokens a second", what: "New tokens of all answers together, over the last seconds" },
      rows: { name: "Rows running", what: "Answers that are written at this moment" },
      waiting: { name: "Waiting", what: "Answers in the queue" },
      tick: { name: "Time per tick", what: "How long one pass through the model takes, over the last seconds" },
      hits: {
        name: "Prompt found in cache",
        what: "The share of all prompt tokens that did not have to be computed again",
      },
      free: { name: "Blocks free", what: "Blocks of memory that the next tokens can have" },
    },
    ticks: {
      title: "Ticks and rows",
      what: "A tick is one pass through the model. Each running row gets one new token from it, and new prompts are " +
        "read beside them, a piece at a time. Rows come and go between any two ticks while the others just go on: that " +
        "is continuous batching.",
      explore: "The last ticks",
      label: (tick) => `The last ticks, and who ran in them. The newest: ${tick}`,
      none: "No tick has happened yet.",
      decode: "new tokens",
      prefill: "prompts being read",
      rows: "Rows in each tick",
      scale: (ms) => `${ms} per tick`,
      runs: "Who runs from when to when",
      yours: (letters) => `${letters} · yours`,
    },
    tick: {
      rows: (count, shown) => `${shown} ${of(count, "row", "rows")}`,
      decoded: (count, shown) => `${shown} new ${of(count, "token", "tokens")}`,
      read: (count, shown) => `${shown} prompt ${of(count, "token", "tokens")} read`,
      model: (ms) => `${ms} of it in the model`,
      all: (number, ms, counts, model) => `Tick ${number}: ${ms}, ${model}; ${counts.join(", ")}.`,
    },
    stay: (letters, isMine, entered, left, isPreempted) => {
      const name = `Row ${letters}${isMine ? ", yours" : ""}: `;
      const came = entered ? `entered at tick ${entered}` : "entered before what is shown";
      if (!left) return `${name}${came} and is running.`;
      return `${name}${came}, ${isPreempted ? "gave way after" : "ended with"} tick ${left}.`;
    },
    blocks: {
      title: "Memory, block by block",
      what: "What the model must remember of a text lies in blocks of 16 tokens. A row takes the next block when its " +
        "text reaches it and gives all of them back in the tick in which it ends; texts that begin alike share. That " +
        "is paged memory.",
      explore: "Blocks of memory",
      full: "full",
      partial: "being filled",
      shared: "shared",
      held: "held for later",
      kept: "kept in case it is asked again",
      free: "free",
      summary: (held, kept, free) => `${held} held, ${kept} kept, ${free} free.`,
      name: (shown) => `Block ${shown}`,
      idle: (name, kind) => `${name}: ${kind}.`,
      owned: (name, kind, whose, filled, size, hasEnded) =>
        `${name}: ${kind}, ${filled} of ${size} tokens; ${whose.join(" and ")}${hasEnded ? ", which has ended" : ""}.`,
    },
    savings: {
      title: "What paging saves",
      what: "Of the memory that answers held, this much was ever used. Beside it what the same requests would have " +
        "used under older ways to share a model, simulated by the server as they come.",
      verdict: (there, here) =>
        `Static batching would have wasted ${there} of the memory it holds; here it is ${here}.`,
      tooLittle: "Not enough seen yet to compare.",
      notEnough: "Not enough seen yet.",
      here: "here",
      own: (used, reserved, lost) => `${used} used, ${reserved} held for what comes next, ${lost} lost`,
      other: (used, wasted) => `${used} used, ${wasted} wasted`,
    },
    policies: {
      paged: { name: "Paged", how: "Block by block, as the text grows." },
      static: { name: "Static batching", how: "Room for the longest text each; nobody leaves until all have ended." },
      reserve_max: { name: "Reserve the most", how: "Room for the longest text each, from the start." },
      reserve_pow2: { name: "Reserve by powers of two", how: "Room for the next power of two, from the start." },
    },
    work: {
      start: "Send it some work",
      stop: "Stop the work",
      instructions: "You are one of six answers that are written at the same time by the same model. Answer in a few " +
        "plain sentences, without lists and without headings.",
      questions: [
        "Why is the sky blue?",
        "What does a lighthouse keeper do at night?",
        "How does bread rise?",
        "Why do cats purr?",
        "How do bees find their way home?",
        "What makes the tide come and go?",
      ],
    },
    tables: {
      summary: "The same in tables",
      running: "Rows that run",
      ticks: "The last ticks, the newest first",
      row: "Row",
      prompt: "Prompt tokens",
      cached: "Found in cache",
      answer: "Answer tokens",
      blocks: "Blocks",
      session: "Session",
      tick: "Tick",
      ms: "Time",
      rows: "Rows",
      decoded: "New tokens",
      read: "Prompt tokens read",
      entered: "Entered",
      left: "Left",
    },
  },

  copied: { yes: "Copied", no: "The browser did not allow copying" },
};
