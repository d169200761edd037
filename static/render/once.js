/**
 * Loading what only some answers need, once.
 *
 * @param {() => Promise<void>} load
 * @returns {() => Promise<boolean>} loads it if need be, and tells whether it is there. Where it did not come, whoever
 *   needs it next tries again.
 */
export function once(load) {
  let loading = null;
  return () => {
    loading ??= load().then(
      () => true,
      () => {
        loading = null;
        return false;
      },
    );
    return loading;
  };
}
