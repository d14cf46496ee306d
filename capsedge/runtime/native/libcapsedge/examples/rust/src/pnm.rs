//! Binary PGM and PPM files of 8 bits.
use std::fs::File;
use std::io::Read;

const SIDE: usize = 32768;
const PIXELS: usize = 1 << 26;

pub struct Picture {
    pub pixels: Vec<u8>,
    pub height: i32,
    pub width: i32,
    pub channels: i32,
}

/// The next number of a header, and what follows its one white space.
fn number(mut data: &[u8]) -> Option<(usize, &[u8])> {
    loop {
        data = &data[data.iter().position(|b| !b.is_ascii_whitespace())?..];
        if data[0] != b'#' {
            break;
        }
        data = &data[data.iter().position(|&b| b == b'\n')?..];
    }
    let end = data.iter().position(|b| b.is_ascii_whitespace())?;
    let value = std::str::from_utf8(&data[..end]).ok()?.parse().ok()?;
    Some((value, &data[end + 1..]))
}

fn decode(data: &[u8]) -> Option<Picture> {
    let channels = match data.get(..2)? {
        b"P5" => 1,
        b"P6" => 3,
        _ => return None,
    };
    let (width, data) = number(&data[2..])?;
    let (height, data) = number(data)?;
    let (largest, data) = number(data)?;
    if largest != 255 || !(1..=SIDE).contains(&width) || !(1..=SIDE).contains(&height) || width * height > PIXELS {
        return None;
    }
    let pixels = data.get(..width * height * channels)?.to_vec();
    Some(Picture { pixels, height: height as i32, width: width as i32, channels: channels as i32 })
}

/// Reads a file; the error is the reason for the failure.
pub fn read(path: &str) -> Result<Picture, String> {
    let mut data = Vec::new();
    let limit = 3 * PIXELS as u64 + 4096;
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(limit).read_to_end(&mut data).map_err(|error| error.to_string())?;
    decode(&data).ok_or_else(|| "only binary PGM and PPM files of 8 bits are read here".to_string())
}
