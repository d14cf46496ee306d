/** What the page and the worker that runs the model say to each other. */
import type { Prediction, Description, ErrorCode, FloatArray, Provider } from "capsedge";

/** A file of the folder, with its checksum. */
export interface FolderFile {
  address: string;
  bytes: number;
  sha256: string;
}

/** Where a model comes from: the folder, which may have it compiled too, or a file that was dropped. */
export type ModelSource = (FolderFile & { compiled: FolderFile | null }) | { file: File };

/** An image: pixels that were drawn, or a PNG or JPEG file. */
export type PageImage = ImageData | Blob;

export interface Opened {
  description: Description;
  provider: Provider;
  /** Why the first choice of providers was not taken; null if it was. */
  fallback: string | null;
  threads: number;
  /** Whether the network itself is WebAssembly, without ONNX Runtime. */
  compiled: boolean;
  /** Whether the file was compared with its checksum. */
  checked: boolean;
}

/** The worker's functions. */
export interface Calls {
  /** Fetch ONNX Runtime, which is wanted next. */
  warm(): Promise<void>;
  open(source: ModelSource, provider: Provider): Promise<Opened>;
  predict(image: PageImage, invert: boolean): Promise<Prediction>;
  /** Pictures of one pose each of some classes: `[C, H, W]` of each. */
  decode(poses: Float32Array[], classes: number[]): Promise<FloatArray[]>;
}

export interface Request {
  id: number;
  name: keyof Calls;
  args: unknown[];
}

export interface Problem {
  code: ErrorCode | "bug";
  message: string;
  hint: string;
}

export type Reply = { id: number; value: unknown } | { id: number; problem: Problem };
