/** Messages between the page and the worker that runs the model. */
import type { Prediction, Description, ErrorCode, FloatArray, Provider } from "capsedge";

/** A file in the folder, with its checksum. */
export interface FolderFile {
  address: string;
  bytes: number;
  sha256: string;
}

/** Where a model comes from: the folder, which may also have it compiled, or a dropped file. */
export type ModelSource = (FolderFile & { compiled: FolderFile | null }) | { file: File };

/** An image: drawn pixels, or a PNG or JPEG file. */
export type PageImage = ImageData | Blob;

export interface Opened {
  description: Description;
  provider: Provider;
  /** Why the preferred provider is not used; null if it is. */
  fallback: string | null;
  threads: number;
  /** Whether the network itself is compiled to WebAssembly and runs without ONNX Runtime. */
  compiled: boolean;
  /** Whether the file was verified against its checksum. */
  checked: boolean;
}

/** The worker's functions. */
export interface Calls {
  /** Fetch ONNX Runtime, which will be needed next. */
  warm(): Promise<void>;
  open(source: ModelSource, provider: Provider): Promise<Opened>;
  predict(image: PageImage, invert: boolean): Promise<Prediction>;
  /** Decode one pose for each of some classes: a picture `[C, H, W]` for each. */
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
