/** Work that only its newest request matters for, such as the picture for a slider that still moves. */

/** A function that runs the task, and once more after it where it was asked for meanwhile. */
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
