/** The page. */
import { Chooser } from "./chooser.js";
import { Engine } from "./engine/client.js";
import { readFolder } from "./folder.js";
import { keepOffline } from "./offline.js";
import { Play } from "./play.js";
import { takeFiles } from "./ui/files.js";
import { byId } from "./ui/dom.js";
import { offerExamples } from "./ui/examples.js";
import { showProblem } from "./ui/message.js";

const engine = new Engine();
const play = new Play(engine);
const chooser = new Chooser(change);
const firstExample = offerExamples((image, name, negative) => void play.take(image, name, negative));
let opened = -1; // index of the open model

async function change(): Promise<void> {
  const source = chooser.source();
  if (!source) return;
  const place = chooser.place;
  try {
    await play.open(source, chooser.wanted());
    opened = place;
  } catch (error) {
    showProblem(error);
    if ("file" in source) chooser.remove(source.file, opened);
  }
}

async function start(): Promise<void> {
  engine.prepare();
  takeFiles((file) => chooser.add(file), (image) => void play.take(image, image.name));
  let runtime: string[] = [];
  try {
    const folder = await readFolder();
    runtime = folder.runtime;
    if (!runtime.length) engine.warm();
    chooser.offer(folder.models);
  } catch (error) {
    showProblem(new Error(`There is no model beside this page: ${error instanceof Error ? error.message : "?"}. Open a model of your own.`));
  }
  byId("loading").textContent = "Loading the model…";
  await Promise.all([firstExample(), chooser.useModel()]);
  await keepOffline(runtime); // it fetches everything again, so it must not compete with the first answer
}

void start();
