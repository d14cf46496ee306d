/** Recognize files that are not ONNX models by their first bytes: formats that are often mistaken for it. */

import { ORT_FORMAT } from "./generated/spec.js";

const EXPORT = "Export the network with `capsedge export`, and load the ONNX file.";
const AGAIN = "The download failed; get the file itself.";

/** First bytes, the name of the format, and what to do. */
const STARTS: readonly (readonly [start: string, name: string, hint: string])[] = [
  ["\x89PNG\r\n", "a PNG image", "Pass it to predict; a model is an ONNX file."],
  ["\xff\xd8\xff", "a JPEG image", "Pass it to predict; a model is an ONNX file."],
  ["PK\x03\x04", "a zip archive, such as a PyTorch checkpoint or a Keras model", EXPORT],
  ["\x89HDF\r\n", "an HDF5 file, such as a Keras model", EXPORT],
  ["\x80\x02", "a Python pickle", EXPORT],
  ["\x93NUMPY", "a NumPy array", "Load an ONNX file."],
  ["GGUF", "a GGUF model", "Load an ONNX file."],
  ["\x1f\x8b", "a compressed file", "Unpack it."],
  ["version https://git-lfs", "a pointer of Git LFS, not the file itself", "Get the file: `git lfs pull`."],
  ["<!doctype html", "a web page", AGAIN],
  ["<html", "a web page", AGAIN],
  ["{", "a JSON file", "Load the ONNX file that it describes."],
];
const TFLITE = "TFL3"; // bytes 4 to 8
const HEAD = 32;

/** The name of a file's format, and what to do with it; null if the format is unknown. */
export function identify(data: Uint8Array): { name: string; hint: string } | null {
  const head = String.fromCharCode(...data.subarray(0, HEAD));
  const start = STARTS.find(([first]) => head.toLowerCase().startsWith(first.toLowerCase()));
  if (start) return { name: start[1], hint: start[2] };
  if (head.slice(4, 8) === ORT_FORMAT)
    return { name: "a model in ONNX Runtime's own format", hint: "Load the ONNX file that it was made from." };
  if (head.slice(4, 8) === TFLITE) return { name: "a LiteRT model", hint: "Load an ONNX file." };
  // A safetensors file begins with the length of its JSON header, in 64 bits.
  if (head[8] === "{" && head.slice(4, 8) === "\0\0\0\0")
    return { name: "a checkpoint or other weights (safetensors)", hint: EXPORT };
  return null;
}
