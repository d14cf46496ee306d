/** Convert numbers on their way into and out of ONNX Runtime. */
import type { Tensor } from "onnxruntime-web";

/** Numbers with their shape, row by row. */
export interface FloatArray {
  data: Float32Array;
  dims: number[];
}

type Cast = (values: Float32Array) => Tensor["data"];

/** From float32 to the types that an input may have, converted as in C. */
export const CASTS: Readonly<Record<string, Cast>> = {
  float32: (values) => values,
  float64: (values) => Float64Array.from(values),
  float16: (values) => Uint16Array.from(values, toHalf) as unknown as Tensor["data"],
  int8: (values) => Int8Array.from(values),
  uint8: (values) => Uint8Array.from(values),
  int16: (values) => Int16Array.from(values),
  uint16: (values) => Uint16Array.from(values),
  int32: (values) => Int32Array.from(values),
  uint32: (values) => Uint32Array.from(values),
  int64: (values) => BigInt64Array.from(Array.from(values, (value) => BigInt(Math.trunc(value)))),
};

/** The values of an output as float32; 16-bit floats arrive as their bits if JavaScript lacks the type. */
export function floats(tensor: Pick<Tensor, "type" | "data">): Float32Array {
  const { data } = tensor;
  if (data instanceof Float32Array) return data;
  if (tensor.type === "float16" && data instanceof Uint16Array) return Float32Array.from(data, fromHalf);
  return Float32Array.from(data as ArrayLike<number | bigint>, Number);
}

const scratch = new DataView(new ArrayBuffer(4));

/** The bits of the float16 nearest to a float32; ties round to even. */
export function toHalf(value: number): number {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const size = Math.abs(value);
  if (Number.isNaN(size)) return sign | 0x7e00;
  if (size >= 65520) return sign | 0x7c00; // rounds to more than the largest value, 65504
  const exponent = Math.max(((bits >>> 23) & 0xff) - 127, -14); // subnormal numbers share the smallest
  const unit = 2 ** (exponent - 10);
  const mantissa = toEven(size / unit);
  return sign | (((exponent + 14) << 10) + mantissa);
}

function toEven(value: number): number {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 === 1) ? floor + 1 : floor;
}

/** The value of a float16's bits. */
export function fromHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 0x3ff;
  if (exponent === 31) return mantissa ? NaN : sign * Infinity;
  return exponent === 0 ? sign * mantissa * 2 ** -24 : sign * (1024 + mantissa) * 2 ** (exponent - 25);
}
