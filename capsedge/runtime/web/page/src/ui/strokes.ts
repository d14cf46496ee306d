/** The drawing as lines in the unit square, so that it stays sharp at any size. */

export type Point = readonly [number, number];
export type Stroke = Point[];

const THICKNESS = 2.6 / 28; // of a line, about that of MNIST's digits, which are 20 pixels in a frame of 28
const FILLED = 20 / 28; // share of the frame that the longer side of a centred drawing takes

type Canvas2d = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

/** Where a drawing is shown: `x' = x * scale + shift`. */
interface Place {
  scale: number;
  shift: Point;
}

const AS_DRAWN: Place = { scale: 1, shift: [0, 0] };

/** The placement that centres strokes and scales them to the size of an MNIST digit. */
export function centred(strokes: readonly Stroke[]): Place {
  const points = strokes.flat();
  if (!points.length) return AS_DRAWN;
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const span = Math.max(right - left, bottom - top);
  const scale = span > 0 ? Math.min(3, (FILLED - THICKNESS) / span) : 1;
  return { scale, shift: [0.5 - (scale * (left + right)) / 2, 0.5 - (scale * (top + bottom)) / 2] };
}

/** Draw strokes into a rectangle. */
export function drawStrokes(context: Canvas2d, strokes: readonly Stroke[], width: number, height: number, colour: string, place = AS_DRAWN): void {
  const at = ([x, y]: Point): Point => [(x * place.scale + place.shift[0]) * width, (y * place.scale + place.shift[1]) * height];
  context.lineWidth = THICKNESS * Math.min(width, height);
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = colour;
  for (const stroke of strokes) {
    const points = stroke.map(at);
    const [first, ...rest] = points;
    if (!first) continue;
    context.beginPath();
    context.moveTo(...first);
    for (const [k, point] of rest.entries()) {
      const next = rest[k + 1] ?? point;
      context.quadraticCurveTo(...point, (point[0] + next[0]) / 2, (point[1] + next[1]) / 2);
    }
    if (!rest.length) context.lineTo(first[0], first[1] + 0.01);
    context.stroke();
  }
}
