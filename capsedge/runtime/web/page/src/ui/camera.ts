/** The camera: its pictures, one after another, as fast as they are classified. */
import { byId } from "./dom.js";
import { showProblem } from "./message.js";

const ASKED = { video: { facingMode: "environment", width: { ideal: 640 } }, audio: false };
const WHY: Record<string, string> = {
  NotAllowedError: "The browser was not allowed to use the camera. Allow it in the address bar, then try again.",
  NotFoundError: "This device has no camera.",
  NotReadableError: "Another program uses the camera.",
};

export class Camera {
  private readonly button = byId<HTMLButtonElement>("camera");
  private readonly video = document.createElement("video");
  private stream: MediaStream | null = null;

  /** @param taken receives each picture, cropped to the central square. The next one waits until it is done. */
  constructor(private readonly taken: (picture: ImageBitmap) => Promise<void>) {
    this.video.muted = this.video.playsInline = true;
    this.button.addEventListener("click", () => void (this.stream ? this.stop() : this.start()));
    document.addEventListener("visibilitychange", () => document.hidden && this.stop());
    if ("mediaDevices" in navigator) return;
    Object.assign(this.button, { disabled: true, title: "Browsers allow the camera over https and on localhost only." });
  }

  /** Release the camera. */
  stop(): void {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = this.video.srcObject = null;
    this.button.setAttribute("aria-pressed", "false");
  }

  private async start(): Promise<void> {
    this.button.disabled = true;
    try {
      const stream = await navigator.mediaDevices.getUserMedia(ASKED);
      stream.getVideoTracks()[0]?.addEventListener("ended", () => this.stop());
      this.stream = this.video.srcObject = stream;
      if (document.hidden) return this.stop(); // the user left the tab while the browser was asking
      this.button.setAttribute("aria-pressed", "true");
      await this.video.play();
      void this.watch(stream);
    } catch (error) {
      this.stop();
      showProblem(new Error(WHY[(error as Error).name] ?? `The camera did not start: ${(error as Error).message}.`));
    } finally {
      this.button.disabled = false;
    }
  }

  private async watch(stream: MediaStream): Promise<void> {
    while (this.stream === stream) {
      const { videoWidth: width, videoHeight: height } = this.video;
      const side = Math.min(width, height);
      if (side) await this.taken(await createImageBitmap(this.video, (width - side) / 2, (height - side) / 2, side, side));
      await new Promise(requestAnimationFrame);
    }
  }
}
