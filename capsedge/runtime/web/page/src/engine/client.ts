/** The page's side of the worker. */
import type { Calls, ModelSource, Opened, Problem, Reply } from "./messages.js";
import type { Provider } from "capsedge";

/** A failure of the worker, described for the user. */
export class Failure extends Error {
  constructor(readonly problem: Problem) {
    super(problem.message);
  }
}

const PATIENCE = 5000; // milliseconds that a request may have been running when another model is chosen

interface Waiting {
  since: number;
  resolve(value: unknown): void;
  reject(failure: Failure): void;
}

/** A worker with at most one model. */
export class Engine {
  private worker: Worker | null = null;
  private readonly waiting = new Map<number, Waiting>();
  private next = 0;

  /**
   * Open another model. A model that never finishes is terminated with its worker, so that none can block the page.
   *
   * @throws Failure if the file is refused.
   */
  async open(source: ModelSource, provider: Provider): Promise<Opened> {
    const oldest = Math.min(...[...this.waiting.values()].map(({ since }) => since));
    if (performance.now() - oldest > PATIENCE) this.abandon({ code: "runtime", message: "Another model was chosen.", hint: "" });
    return this.call("open", source, provider);
  }

  /** Start the worker while the page is still fetching the list of models. */
  prepare(): void {
    this.worker ??= this.start();
  }

  /** Have the worker fetch ONNX Runtime while the model is fetched; a failure is reported when the model is opened. */
  warm(): void {
    this.call("warm").catch(() => undefined);
  }

  /** Call a function of the worker. */
  call<Name extends keyof Calls>(name: Name, ...args: Parameters<Calls[Name]>): ReturnType<Calls[Name]> {
    const worker = (this.worker ??= this.start());
    const id = this.next++;
    const answered = new Promise((resolve, reject: (failure: Failure) => void) => {
      this.waiting.set(id, { since: performance.now(), resolve, reject });
      worker.postMessage({ id, name, args });
    });
    return answered as ReturnType<Calls[Name]>;
  }

  private start(): Worker {
    const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<Reply>) => this.settle(data);
    worker.onerror = () => this.abandon({ code: "runtime", message: "The model's worker ended: it may have run out of memory.", hint: "Reload the page." });
    return worker;
  }

  private settle(reply: Reply): void {
    const waiting = this.waiting.get(reply.id);
    this.waiting.delete(reply.id);
    if ("problem" in reply) waiting?.reject(new Failure(reply.problem));
    else waiting?.resolve(reply.value);
  }

  private abandon(problem: Problem): void {
    this.worker?.terminate();
    this.worker = null;
    const given = [...this.waiting.values()];
    this.waiting.clear();
    for (const { reject } of given) reject(new Failure(problem));
  }
}
