/**
 * Resizing, as docs/reference/runtime.md ("Resizing") specifies it to the last bit.
 *
 * A separable triangle filter in float32: rows first, then columns. Positions and weights are integers up to a single
 * division. A product or a sum of two float32 in double precision, rounded to float32, is the float32 result.
 */
const round = Math.fround;

/** The first source pixel that a target pixel uses, and the weights of it and the following ones. */
interface Taps {
  first: number;
  weights: Float32Array;
}

/** Source rows as float32 levels, `[width, channels]` each. */
export type Rows = (row: number) => Float32Array;

/**
 * Resize an image to `[targetHeight, targetWidth, channels]`, in row-major order.
 *
 * @param rows the source with `height` rows; each row is read when it is needed.
 */
export function resize(
  rows: Rows,
  height: number,
  width: number,
  channels: number,
  targetHeight: number,
  targetWidth: number,
): Float32Array {
  const result = new Float32Array(targetHeight * targetWidth * channels);
  resizeByRow(rows, height, width, channels, targetHeight, targetWidth, (i, row) =>
    result.set(row, i * targetWidth * channels),
  );
  return result;
}

/** As `resize`, calling `take` with each row of the result in turn; its memory is used again for the next. */
export function resizeByRow(
  rows: Rows,
  height: number,
  width: number,
  channels: number,
  targetHeight: number,
  targetWidth: number,
  take: (i: number, row: Float32Array) => void,
): void {
  const columns = Array.from({ length: targetWidth }, (_, i) => taps(width, targetWidth, i));
  const row = new Float32Array(targetWidth * channels);
  for (let i = 0; i < targetHeight; i++) {
    filterColumns(combined(rows, taps(height, targetHeight, i), width * channels), columns, channels, row);
    take(i, row);
  }
}

/**
 * With n source and m target pixels, everything multiplied by 2m is a whole number:
 * `W(i, k) = 2 max(n, m) - |(2k + 1) m - (2i + 1) n|`, where positive.
 */
function taps(source: number, target: number, index: number): Taps {
  const centre = (2 * index + 1) * source;
  const half = 2 * Math.max(source, target);
  let first = Math.max(0, Math.floor((Math.floor((centre - half) / target) + 1) / 2));
  const last = Math.min(source - 1, Math.floor((Math.floor((centre + half) / target) + 1) / 2));
  const whole: number[] = [];
  let sum = 0;
  for (let k = first; k <= last; k++) {
    const weight = half - Math.abs((2 * k + 1) * target - centre);
    if (weight > 0) {
      whole.push(weight);
      sum += weight;
    } else if (!whole.length) first = k + 1;
  }
  return { first, weights: Float32Array.from(whole, (weight) => weight / sum) };
}

/** The weighted sum of whole rows. */
function combined(rows: Rows, { first, weights }: Taps, size: number): Float32Array {
  const total = new Float32Array(size);
  for (let k = 0; k < weights.length; k++) {
    const row = rows(first + k);
    const weight = weights[k] as number;
    if (k === 0) for (let x = 0; x < size; x++) total[x] = weight * (row[x] as number);
    else for (let x = 0; x < size; x++) total[x] = (total[x] as number) + round(weight * (row[x] as number));
  }
  return total;
}

function filterColumns(row: Float32Array, columns: readonly Taps[], channels: number, to: Float32Array): void {
  for (let i = 0; i < columns.length; i++) {
    const { first, weights } = columns[i] as Taps;
    for (let c = 0; c < channels; c++) {
      let total = round((weights[0] as number) * (row[first * channels + c] as number));
      for (let k = 1; k < weights.length; k++) {
        total = round(total + round((weights[k] as number) * (row[(first + k) * channels + c] as number)));
      }
      to[i * channels + c] = total;
    }
  }
}
