/**
 * A conversation as a tree of messages, each naming its parent; the way from a leaf to the root is a conversation
 * as it is read. Pure: knows messages, not where they are kept or who shows them.
 *
 * A tree is a Map of message ids to messages.
 */

/** The messages from the root down to `head`. */
export function pathTo(head, tree) {
  const path = [];
  for (let message = tree.get(head); message; message = tree.get(message.parent)) path.unshift(message);
  return path;
}

/** The messages that stand in a message's place, itself among them, the oldest first. */
export function siblingsOf(message, tree) {
  return childrenIn(tree).get(message.parent) ?? [];
}

/** The siblings of each message of a path. */
export function siblingsAlong(path, tree) {
  const children = childrenIn(tree);
  return path.map(({ parent }) => children.get(parent));
}

/** Where one gets from a message by going to the newest child, again and again. */
export function newestLeaf(message, tree) {
  const children = childrenIn(tree);
  let leaf = message;
  for (let next = message; next; next = children.get(leaf.id)?.at(-1)) leaf = next;
  return leaf;
}

/** A message and all that hangs on it. */
export function branchFrom(message, tree) {
  const children = childrenIn(tree);
  const branch = [message];
  // What is added while it is gone through is gone through, too.
  for (const { id } of branch) branch.push(...(children.get(id) ?? []));
  return branch;
}

/** Parent -> its children, the oldest first. One look at the tree: a chat may have thousands of messages. */
function childrenIn(tree) {
  const children = Map.groupBy(tree.values(), ({ parent }) => parent);
  for (const each of children.values()) each.sort((a, b) => a.created - b.created);
  return children;
}

/**
 * A path as the server reads it. The whole conversation goes out each time: what a server remembers is bounded and
 * lost when it restarts. Questions that got no text are joined, since templates want roles in turn.
 */
export function toInput(path) {
  const input = [];
  for (const { role, text } of path) {
    if (!text) continue;
    const last = input.at(-1);
    if (last?.role === role) last.content += `\n\n${text}`;
    else input.push({ role, content: text });
  }
  return input;
}
