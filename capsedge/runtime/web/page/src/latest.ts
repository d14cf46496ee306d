/** Work for which only the latest request matters, such as the picture for a slider that is still moving. */

/** A function that runs the task, and runs it once more if it was called again in the meantime. */
export function latest(task: () => Promise<void>): () => Promise<void> {
  let running: Promise<void> | null = null;
  let again = false;
  const loop = async () => {
    do {
      again = false;
      await task();
    } while (again);
  };
  return () => {
    again = true;
    running ??= loop().finally(() => {
      running = null;
    });
    return running;
  };
}
