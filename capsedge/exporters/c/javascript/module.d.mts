/** @NAME@, a capsule network in WebAssembly, written by capsedge. */

/** Results of a call, in the shapes that `description.outputs` states. */
export interface Outputs {
@OUTPUTS@
}

/** A class and its score. */
export interface Ranked {
  readonly label: string;
  readonly index: number;
  readonly score: number;
}

/** The best class, the ranking, and all results. */
export interface Prediction extends Ranked {
  readonly ranking: readonly Ranked[];
  readonly outputs: Outputs;
}

/** How pixels become the input: `(pixel * scale - mean) / std` of every channel. */
export interface Preprocessing {
  readonly height: number;
  readonly width: number;
  readonly channels: number;
  readonly scale: number;
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly resize: @Resize@;
  readonly per_image: @PerImage@;
  readonly layout: @Layout@;
  readonly order: @Order@;
}

/** What the ONNX file states. */
export interface Description {
  readonly name: string;
  /** Of capsedge. */
  readonly version: string;
  /** The ONNX file. */
  readonly source: { readonly file: string; readonly sha256: string; readonly bytes: number };
  readonly task: string;
  readonly precision: string;
  readonly labels: readonly string[];
  readonly input: { readonly shape: readonly number[]; readonly size: number };
  readonly preprocessing: Preprocessing | null;
  readonly outputs: readonly {
    /** In the ONNX file. */
    readonly name: string;
    /** In `Outputs`. */
    readonly field: keyof Outputs;
    readonly shape: readonly number[];
    readonly meaning: string;
  }[];
  /** The output that decides the class, and what its values are; null for a regression. */
  readonly scores: { readonly field: keyof Outputs; readonly kind: @ScoreKind@ } | null;
  /** Classes and values of a pose, and the shape of a picture; null without a decoder. */
  readonly reconstruction: { readonly capsules: readonly [number, number]; readonly picture: readonly number[] } | null;
}

/** Grey or interleaved RGB pixels of the network's size, or an ImageData of that size. */
export type Pixels = Uint8Array | Uint8ClampedArray | { data: Uint8ClampedArray; width: number; height: number };

/** A loaded network. Its calls are synchronous. */
export declare class Network {
  private constructor();
  /** The compiled module, for `load` in another worker. */
  readonly module: WebAssembly.Module;
  readonly description: Description;
  /** Names of the classes. Plain text: show it with `textContent`. */
  readonly labels: readonly string[];
  /** Images of a call; 1 unless it was built with another batch. */
  readonly batch: number;
  /** The network's input, the same bits as in Python and C. An ImageData is put on black; grey networks get its luma. */
  prepare(pixels: Pixels): Float32Array;
  /** Run the network on a prepared input. */
  run(input: Float32Array): Outputs;
  /** Classify one image, or a prepared input. */
  predict(image: Pixels | Float32Array, top?: number): Prediction;
  /** The picture of the pose of a class. */
  reconstruct(pose: Float32Array, classIndex: number): Float32Array;
}

/** Load `@NAME@.wasm`: its address, its bytes, or the compiled module; by default the file beside this module. */
export declare function load(
  source?: string | URL | Response | ArrayBuffer | ArrayBufferView | WebAssembly.Module,
): Promise<Network>;
