//! Classify images in Rust:  classify MODEL IMAGE.ppm...
//! Prints one line per image: its classes with their scores, or the values of a regression, with all digits. Images are
//! binary PGM or PPM files of 8 bits, so that no crate is needed; a real program has a camera or a decoder.
mod pnm;

use capsedge::{Error, Image, Options, Prediction, Result, Session};
use std::process::exit;

fn line(session: &Session, prediction: &Prediction) -> Result<String> {
    let answer = prediction.answer(0)?;
    let mut words = Vec::new();
    for (k, value) in answer.values.iter().enumerate() {
        let (name, unit) = session.value_name(k)?;
        words.push(format!("{name} {value} {unit}").trim_end().to_string());
    }
    for label in answer.labels() {
        words.push(format!("{}, {} {}", label.name, answer.score_kind, label.score));
    }
    Ok(if words.is_empty() { "-".to_string() } else { words.join("; ") })
}

fn classify(model: &str, paths: &[String]) -> Result<()> {
    let session = Session::open(model, 0)?;
    let mut prediction = Prediction::new()?;
    for path in paths {
        let picture = pnm::read(path).map_err(|why| Error { code: 2, message: format!("{path}: {why}") })?;
        let image = Image::new(&picture.pixels, picture.height, picture.width, picture.channels)?;
        session.predict(&[image], &Options::default(), &mut prediction)?;
        println!("{path}: {}", line(&session, &prediction)?);
    }
    Ok(())
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.len() < 2 {
        eprintln!("usage: classify MODEL IMAGE.ppm...");
        exit(2);
    }
    if let Err(error) = classify(&words[0], &words[1..]) {
        eprintln!("error: {error}");
        exit(error.code);
    }
}
