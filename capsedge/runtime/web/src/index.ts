/** Capsule networks exported by capsedge, in browsers and Node.js. */
export { load, type LoadOptions } from "./load.js";
export { loadCompiled, type CompiledOptions } from "./compiled.js";
export type { Source } from "./source.js";
export { Session, type Prediction, type PredictOptions, type PrepareOptions } from "./session.js";
export { CapsedgeError, type ErrorCode } from "./errors.js";
export { LIMITS, type Limits } from "./limits.js";
export type { Description } from "./description.js";
export type { Provider, Runtime } from "./engine.js";
export type { ImageSource, RawImage } from "./pixels.js";
export type { Preprocessing } from "./preprocessing.js";
export type { Mask } from "./masks.js";
export type { Ranked } from "./scores.js";
export type { FloatArray } from "./tensors.js";
export type { Cascade, Origin, TraceLayer, TypicalInput } from "./declared-fields.js";
export type { Task, ScoreKind, TraceKind } from "./generated/spec.js";
export type { TracedLayer } from "./trace.js";
