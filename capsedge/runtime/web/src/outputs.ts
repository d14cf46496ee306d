/** The outputs of a model that hold scores, poses and values, found as in `predictions.py`. */
import { CapsedgeError } from "./errors.js";
import { ESCALATED, LENGTHS, LOGITS, POSES, type ScoreKind } from "./generated/spec.js";
import { UNKNOWN } from "./generated/metadata.js";
import { fits, type Port } from "./graph.js";
import type { Limits } from "./limits.js";
import { mapsOf } from "./masks.js";
import type { Metadata } from "./metadata.js";
import { grouped, short } from "./text.js";

/** The outputs that hold the results; empty if there is none. */
export interface OutputRoles {
  scores: string;
  kind: ScoreKind | "";
  poses: string;
  values: readonly string[];
  /** For a cascade, the output that states which images the large network decided. */
  escalated: string;
}

/**
 * The outputs of a file, after comparing its metadata with its graph.
 *
 * @throws CapsedgeError `metadata` if the two do not match, `limit` if the file fixes sizes that are too large.
 */
export function outputRoles(
  metadata: Metadata,
  inputs: readonly Port[],
  outputs: readonly Port[],
  limits: Limits,
): OutputRoles {
  checkBytes("inputs", inputs, limits);
  checkBytes("outputs", outputs, limits);
  checkInput(metadata, inputs);
  const ports = new Map(outputs.map((port) => [port.name, port]));
  const found = declared(metadata, ports);
  if (metadata.task === "regression")
    checkValues(
      metadata,
      found.values.map((name) => portOf(ports, name)),
    );
  else if (metadata.task === "segmentation") checkMaps(metadata, portOf(ports, found.scores));
  else checkClasses(metadata, portOf(ports, found.scores), found.poses ? portOf(ports, found.poses) : null);
  for (const layer of metadata.trace ?? []) for (const name of layer.outputs.values()) portOf(ports, name);
  if (!metadata.cascade) return found;
  const escalated = ports.get(ESCALATED);
  if (escalated?.type !== "bool" || escalated.shape.length !== 1) {
    throw unfit(`it states a cascade, and the graph has no output ${ESCALATED} [N] of type bool`);
  }
  return { ...found, escalated: ESCALATED };
}

function declared(metadata: Metadata, ports: ReadonlyMap<string, Port>): OutputRoles {
  const o = metadata.outputs;
  if (o) return { scores: o.scores, kind: o.kind, poses: o.poses, values: o.values, escalated: "" };
  const scores = [LENGTHS, LOGITS].filter((name) => ports.has(name));
  if (scores.length !== 1 || !ports.has(POSES)) {
    throw unfit(`it needs the outputs lengths or logits, and poses; the graph has ${listed(ports.keys())}`);
  }
  const name = scores[0] ?? "";
  return { scores: name, kind: name === LENGTHS ? "length" : "logits", poses: POSES, values: [], escalated: "" };
}

function portOf(ports: ReadonlyMap<string, Port>, name: string): Port {
  const port = ports.get(name);
  if (!port) throw unfit(`it names the output '${short(name)}'; the graph has ${listed(ports.keys())}`);
  return port;
}

function checkBytes(what: string, ports: readonly Port[], limits: Limits): void {
  const bytes = ports.map((port) => port.shape.reduce<number>((size, d) => size * (d || 1), port.width));
  if (bytes.reduce((a, b) => a + b, 0) > limits.runBytes) {
    throw new CapsedgeError(
      "limit",
      `One run of the file would take over ${grouped(limits.runBytes)} bytes of ${what}.`,
      "Export it with a free batch or a smaller one.",
    );
  }
}

function checkInput(metadata: Metadata, inputs: readonly Port[]): void {
  const [input] = inputs;
  if (inputs.length !== 1 || input?.shape.length !== 4) {
    throw unfit(`the graph has ${inputs.length} inputs, not one, images [N, C, H, W]`);
  }
  if (input.shape[0] === 0) throw unfit(`the input is ${shapeText(input.shape)}, for no image`);
  const p = metadata.preprocessing;
  if (!p) return;
  const image = p.layout === "NCHW" ? [p.channels, p.height, p.width] : [p.height, p.width, p.channels];
  if (!fits(image, input.shape.slice(1))) {
    throw unfit(`it prepares images [${image.join(", ")}] for an input ${shapeText(input.shape)}`);
  }
}

function checkClasses(metadata: Metadata, scores: Port, poses: Port | null): void {
  const count = metadata.classNames.length;
  const sizes = scores.shape.slice(1);
  if (count ? !fits([count], sizes) : metadata.outputs !== null && sizes.length !== 1) {
    throw unfit(`it names ${count} classes, ${short(scores.name)} has ${shapeText(scores.shape)}`);
  }
  const classes = count || sizes[0];
  const each = poses === null || typeof classes !== "number" || fits([classes], poses.shape.slice(1, 2));
  if (poses && metadata.outputs && (poses.shape.length < 3 || !each)) {
    throw unfit(`${short(poses.name)} has ${shapeText(poses.shape)}, not a pose for each class`);
  }
}

function checkMaps(metadata: Metadata, scores: Port): void {
  const of = `${short(scores.name)} has ${shapeText(scores.shape)}`;
  const { length } = scores.shape;
  if (length !== 3 && length !== 4) throw unfit(`a mask needs scores [H, W] or [maps, H, W], ${of}`);
  const named = metadata.classNames.length;
  const maps = mapsOf(scores.shape, metadata.preprocessing) ?? (named || 1);
  if (maps > UNKNOWN) throw unfit(`a mask has at most ${UNKNOWN} classes, ${of}`);
  if (named && named !== Math.max(2, maps)) {
    throw unfit(`it names ${named} classes, ${of}, maps of ${Math.max(2, maps)}`);
  }
}

function checkValues(metadata: Metadata, ports: readonly Port[]): void {
  const named = metadata.outputs?.names.length ?? 0;
  const counts = ports.map((port) => elements(port));
  const known = counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
  const wrong = counts.includes(null) ? known > named : known !== named;
  if (wrong || ports.some((port) => port.shape.length === 0)) {
    throw unfit(
      `it names ${named} values, the outputs have ${ports.map((port) => `${short(port.name)} ${shapeText(port.shape)}`).join(", ")}`,
    );
  }
}

/** The number of values per image in an output; null if the file leaves it open. */
export function elements(port: Port): number | null {
  return port.shape.slice(1).reduce<number | null>((size, d) => (size === null || d === null ? null : size * d), 1);
}

/** A shape as text: `[N, 1, 28, 28]`. */
export function shapeText(shape: readonly (number | null)[]): string {
  return `[${shape.map((size) => size ?? "N").join(", ")}]`;
}

function listed(names: Iterable<string>): string {
  return short([...names].join(", "), 400);
}

function unfit(why: string): CapsedgeError {
  return new CapsedgeError(
    "metadata",
    `The metadata of the file does not fit its graph: ${why}.`,
    "Export the model again with `capsedge export`, or correct its metadata with `capsedge optimize`.",
  );
}
