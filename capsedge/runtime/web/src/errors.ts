/** What an error is about; see `CapsedgeError`. */
export type ErrorCode = "file" | "metadata" | "limit" | "input" | "runtime";

/**
 * Every error that the package raises on purpose.
 *
 * `code` is `file` for bytes that are not an ONNX file or must not run, `metadata` for the file's metadata,
 * `limit` for anything too large, `input` for an argument, and `runtime` for ONNX Runtime and the network.
 */
export class CapsedgeError extends Error {
  override readonly name = "CapsedgeError";

  /**
   * @param code what the error is about.
   * @param message what is wrong and why, as plain text.
   * @param hint how to fix it; may be empty.
   */
  constructor(
    readonly code: ErrorCode,
    message: string,
    readonly hint: string = "",
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** Bytes or text that are invalid; callers turn this into a `CapsedgeError`. */
export class Malformed extends Error {
  /** @param tooLarge whether a limit was exceeded. */
  constructor(
    message: string,
    readonly tooLarge = false,
  ) {
    super(message);
  }
}

/** The message of any thrown value. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
