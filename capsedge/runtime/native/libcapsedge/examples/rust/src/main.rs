//! Classify images in Rust:  classify MODEL IMAGE.ppm...
//! Prints one line per image: its classes with their scores, the values of a regression, or of each class of a mask its
//! share of the pixels that the network saw; with all digits. Images are binary PGM or PPM files of 8 bits, so that no
//! crate is needed; a real program has a camera or a decoder.
mod pnm;

use capsedge::{Error, Image, ImageResult, Options, Prediction, Result, Session};
use std::process::exit;

/// The classes of a mask, each with its share of the pixels that the network saw.
fn shares(session: &Session, result: &ImageResult) -> Result<Vec<String>> {
    let mut counts = [0_usize; 256];
    for class in result.mask {
        counts[usize::from(*class)] += 1;
    }
    let seen = result.mask.len() - counts[255];
    let mut words = Vec::new();
    for class in 0..255_u8 {
        let count = counts[usize::from(class)];
        if count > 0 {
            words.push(format!("{} {}", session.class_name(class)?, count as f64 / seen as f64));
        }
    }
    Ok(words)
}

fn line(session: &Session, prediction: &Prediction) -> Result<String> {
    let result = prediction.result(0)?;
    let mut words = shares(session, &result)?;
    for (k, value) in result.values.iter().enumerate() {
        let (name, unit) = session.value_name(k)?;
        words.push(format!("{name} {value} {unit}").trim_end().to_string());
    }
    for label in result.labels() {
        words.push(format!("{}, {} {}", label.name, result.score_kind, label.score));
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
