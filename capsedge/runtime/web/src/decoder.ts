/** The decoder of a file, run separately: from poses of class capsules to reconstructions. */
import { elements } from "./outputs.js";
import { extractSubgraph, SubgraphError, type Subgraph } from "./subgraph.js";
import { open, type Engine, type Provider, type Runtime } from "./engine.js";
import { CapsedgeError } from "./errors.js";
import { Graph, type Port } from "./graph.js";
import { INPUT_MAGNITUDE, RECONSTRUCTION } from "./generated/spec.js";
import type { Limits } from "./limits.js";
import { runItems } from "./runner.js";
import { grouped } from "./text.js";
import type { FloatArray } from "./tensors.js";

const CHUNK = 64; // images per run, to limit memory
const AGAIN = "Export the model again with `capsedge export --with reconstruction`.";

/** How to open a part of a file. */
export interface Opening {
  runtime: Runtime;
  provider: Provider;
  limits: Limits;
}

/** Reconstructs pictures from poses. */
export interface PoseDecoder {
  /**
   * Reconstruct pictures from poses.
   *
   * @param poses `[N, J, P]` flattened, or `[N, P]` with `classIndex`; finite, and below 2^32.
   * @returns `[N, J, C, H, W]`, or `[N, C, H, W]` for that class.
   * @throws CapsedgeError `input` if the poses do not fit.
   */
  decode(poses: Float32Array, classIndex: number | null): Promise<FloatArray>;
  close(): Promise<void>;
}

/** The part of a file between its poses and its reconstruction, opened on first use. */
export class Decoder implements PoseDecoder {
  private engine: Promise<Engine> | null = null;

  private constructor(
    private readonly part: Subgraph,
    /** The input of the decoder. */
    private readonly port: Port,
    /** The numbers of class capsules and of elements per pose. */
    readonly classes: number,
    readonly size: number,
    private readonly opening: Opening,
  ) {}

  /**
   * The decoder of a file, or a text that says why it has none.
   *
   * @param poses the output with a pose for each class.
   */
  static of(graph: Graph, poses: Port | undefined, opening: Opening): Decoder | string {
    if (!poses || !graph.outputs.some((port) => port.name === RECONSTRUCTION))
      return `it has no output '${RECONSTRUCTION}'`;
    const classes = poses.shape[1];
    const all = elements(poses);
    if (typeof classes !== "number" || all === null) return "it leaves the number of its poses open";
    try {
      const part = extractSubgraph(graph, poses.name, RECONSTRUCTION);
      const [port] = new Graph(part.file, opening.limits).inputs;
      if (!port || elements(port) !== all || !fitsRun(port, 4 * all, opening.limits)) {
        return "its decoder reads another number of poses";
      }
      return new Decoder(part, port, classes, all / classes, opening);
    } catch (error) {
      if (error instanceof SubgraphError) return `its pictures are not computed from the poses alone: ${error.message}`;
      throw error;
    }
  }

  async decode(poses: Float32Array, classIndex: number | null): Promise<FloatArray> {
    const each = checkedPoses(poses, this.classes, this.size, classIndex);
    const count = poses.length / each;
    const whole = classIndex === null ? poses : this.packed(poses, count, classIndex);
    const pictures = await this.runAll(whole, count);
    return classIndex === null ? pictures : this.picked(pictures, classIndex);
  }

  /** Poses `[N, P]` of one class as `[N, J, P]`; a picture depends only on the pose of its own class. */
  private packed(poses: Float32Array, count: number, classIndex: number): Float32Array {
    const whole = new Float32Array(count * this.classes * this.size);
    for (let k = 0; k < count; k++) {
      whole.set(poses.subarray(k * this.size, (k + 1) * this.size), (k * this.classes + classIndex) * this.size);
    }
    return whole;
  }

  private picked({ data, dims }: FloatArray, classIndex: number): FloatArray {
    const [count = 0, classes, ...picture] = dims;
    if (dims.length !== 5 || classes !== this.classes) {
      throw new CapsedgeError(
        "input",
        `The file does not reconstruct each class: its reconstruction is [${dims.join(", ")}].`,
        "Leave out the class, and pass the poses of all classes.",
      );
    }
    const size = picture.reduce((a, b) => a * b, 1);
    const found = new Float32Array(count * size);
    for (let k = 0; k < count; k++) {
      const at = (k * classes + classIndex) * size;
      found.set(data.subarray(at, at + size), k * size);
    }
    return { data: found, dims: [count, ...picture] };
  }

  private async runAll(poses: Float32Array, count: number): Promise<FloatArray> {
    this.engine ??= this.opened().catch((error: unknown) => {
      this.engine = null; // the next call tries again
      throw error;
    });
    const engine = await this.engine;
    const step = this.port.shape[0] ?? CHUNK;
    const item = this.port.shape.slice(1).map((size) => size ?? 1);
    const each = poses.length / count;
    const parts: FloatArray[] = [];
    for (let at = 0; at < count; at += step) {
      const some = Math.min(step, count - at);
      const found = await runItems(engine, this.port, poses.subarray(at * each, (at + some) * each), some, item, [
        RECONSTRUCTION,
      ]);
      parts.push(found.get(RECONSTRUCTION) as FloatArray);
    }
    return joined(parts, count);
  }

  private async opened(): Promise<Engine> {
    const { runtime, provider, limits } = this.opening;
    return (await open(runtime, this.part.file, [provider], limits)).engine;
  }

  async close(): Promise<void> {
    const engine = await this.engine?.catch(() => null);
    await engine?.close();
  }
}

/** Whether a batch can be run, if it is fixed. */
function fitsRun(port: Port, bytes: number, limits: Limits): boolean {
  const [batch = null] = port.shape;
  return batch === null || (batch > 0 && batch * bytes <= limits.runBytes);
}

/**
 * Refuse poses that do not fit a decoder.
 *
 * @returns the number of values per item: the poses of all classes, or of one.
 * @throws CapsedgeError `input`.
 */
export function checkedPoses(poses: Float32Array, classes: number, size: number, classIndex: number | null): number {
  const each = classIndex === null ? classes * size : size;
  if (classIndex !== null && !(Number.isInteger(classIndex) && classIndex >= 0 && classIndex < classes)) {
    throw new CapsedgeError(
      "input",
      `The class is ${classIndex}.`,
      `Classes are whole numbers from 0 to ${classes - 1}.`,
    );
  }
  if (!(poses instanceof Float32Array)) {
    throw new CapsedgeError(
      "input",
      "The poses are not a Float32Array.",
      "Pass `poses` of a prediction, or new Float32Array(values).",
    );
  }
  if (!poses.length || poses.length % each) {
    const wanted = classIndex === null ? `[N, ${classes}, ${size}]` : `[N, ${size}] of one class`;
    throw new CapsedgeError(
      "input",
      `The poses have ${grouped(poses.length)} values.`,
      `Pass a Float32Array ${wanted}.`,
    );
  }
  if (!poses.every((value) => Math.abs(value) < INPUT_MAGNITUDE)) {
    throw new CapsedgeError(
      "input",
      "The poses have values that are NaN, infinite, or of 2^32 and more.",
      "Pass finite numbers.",
    );
  }
  return each;
}

/** The error for a file that cannot decode poses. */
export function noDecoder(why: string): CapsedgeError {
  return new CapsedgeError("input", `The file cannot decode poses: ${why}.`, AGAIN);
}

function joined(parts: readonly FloatArray[], count: number): FloatArray {
  const [first] = parts;
  const dims = [count, ...(first?.dims.slice(1) ?? [])];
  if (parts.length === 1 && first) return { data: first.data.slice(), dims };
  const data = new Float32Array(dims.reduce((a, b) => a * b, 1));
  let at = 0;
  for (const part of parts) {
    data.set(part.data, at);
    at += part.data.length;
  }
  return { data, dims };
}
