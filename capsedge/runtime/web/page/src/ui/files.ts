/** Files that the user drops, pastes or chooses: models and images. */
import { byId } from "./dom.js";

/** Listen for files anywhere on the page. */
export function takeFiles(takeModel: (file: File) => void, takeImage: (file: File) => void): void {
  const take = (files: Iterable<File>) => {
    for (const file of files) {
      if (/\.onnx$/i.test(file.name)) takeModel(file);
      else takeImage(file); // which recognizes a file by its content
    }
  };
  const choice = byId<HTMLInputElement>("file");
  byId("open").addEventListener("click", () => choice.click());
  choice.addEventListener("change", () => {
    take(choice.files ?? []);
    choice.value = "";
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    take(event.dataTransfer?.files ?? []);
  });
  document.addEventListener("paste", (event) => take(event.clipboardData?.files ?? []));
}
