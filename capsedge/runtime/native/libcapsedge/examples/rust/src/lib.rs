//! capsedge in safe Rust: owners that close what they hold, results that borrow it, errors as `Result`.
pub mod sys;

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::raw::c_char;
use std::{fmt, ptr, slice};

/// A failure: `code` is an exit code of the command line, `message` says what failed, why, and what mends it.
#[derive(Debug)]
pub struct Error {
    pub code: i32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

const USAGE: i32 = 2;

fn usage(message: &str) -> Error {
    Error { code: USAGE, message: message.to_string() }
}

/// Takes over a status.
fn check(status: *mut sys::capsedge_status) -> Result<()> {
    if status.is_null() {
        return Ok(());
    }
    // SAFETY: the status is the caller's until it is released, and its message is a string that ends with NUL.
    unsafe {
        let error = Error { code: sys::capsedge_status_code(status), message: text(sys::capsedge_status_message(status)) };
        sys::capsedge_status_release(status);
        Err(error)
    }
}

/// # Safety
/// `from` is null, or a string that ends with NUL.
unsafe fn text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    CStr::from_ptr(from).to_string_lossy().into_owned()
}

/// # Safety
/// `from` is null, or points to `count` values that live as long as the result.
unsafe fn view<'a, T>(from: *const T, count: usize) -> &'a [T] {
    if from.is_null() {
        return &[];
    }
    slice::from_raw_parts(from, count)
}

/// A loaded model, for any number of threads at once.
pub struct Session {
    handle: *mut sys::capsedge_session,
}

// SAFETY: the library allows calls of one session from any number of threads.
unsafe impl Send for Session {}
unsafe impl Sync for Session {}

impl Session {
    /// Loads a model file; `threads` 0: one per core.
    pub fn open(path: &str, threads: i32) -> Result<Session> {
        let path = CString::new(path).map_err(|_| usage("The name of a file cannot contain NUL."))?;
        let options = sys::capsedge_open_options {
            size: size_of::<sys::capsedge_open_options>(),
            threads,
            ops: 0,
            onnxruntime: ptr::null(),
            outputs: ptr::null(),
            output_count: 0,
            tensorrt: ptr::null(),
            device: 0,
            contexts: 0,
        };
        let mut handle = ptr::null_mut();
        // SAFETY: the arguments live during the call, and the library keeps none of them.
        check(unsafe { sys::capsedge_open(path.as_ptr(), &options, &mut handle) })?;
        Ok(Session { handle })
    }

    /// Name and unit of a regression's value.
    pub fn value_name(&self, index: usize) -> Result<(String, String)> {
        let (mut name, mut unit) = (ptr::null(), ptr::null());
        // SAFETY: the strings belong to the session, which is open.
        unsafe {
            check(sys::capsedge_value_name(self.handle, index, &mut name, &mut unit))?;
            Ok((text(name), text(unit)))
        }
    }

    /// Predicts a batch of images into `to`, whose earlier results end.
    pub fn predict(&self, images: &[Image], options: &Options, to: &mut Prediction) -> Result<()> {
        let images: Vec<sys::capsedge_image> = images.iter().map(Image::as_c).collect();
        let options = sys::capsedge_predict_options {
            size: size_of::<sys::capsedge_predict_options>(),
            top_k: options.top_k,
            use_threshold: options.threshold.is_some().into(),
            threshold: options.threshold.unwrap_or(0.0),
            invert: options.invert.into(),
        };
        // SAFETY: the pixels live during the call; nobody else uses the prediction.
        check(unsafe { sys::capsedge_predict(self.handle, images.as_ptr(), images.len(), &options, to.handle) })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the session is open, and closed only here. Nothing can be done about a failure.
        unsafe { sys::capsedge_status_release(sys::capsedge_close(self.handle)) }
    }
}

/// Which labels are listed (0: no limit), and whether the image is dark ink on a light ground.
#[derive(Default)]
pub struct Options {
    pub top_k: i32,
    pub threshold: Option<f64>,
    pub invert: bool,
}

/// 8-bit pixels of an image: `height` rows of `width` pixels of `channels` values.
pub struct Image<'a> {
    pixels: &'a [u8],
    height: i32,
    width: i32,
    channels: i32,
}

impl<'a> Image<'a> {
    /// Refuses sizes that are not those of the pixels.
    pub fn new(pixels: &'a [u8], height: i32, width: i32, channels: i32) -> Result<Image<'a>> {
        let size = |n: i32| usize::try_from(n).ok();
        let wanted = size(height)
            .zip(size(width))
            .zip(size(channels))
            .and_then(|((h, w), c)| h.checked_mul(w)?.checked_mul(c));
        if wanted != Some(pixels.len()) {
            return Err(usage("The image has more or fewer pixels than its size says."));
        }
        Ok(Image { pixels, height, width, channels })
    }

    fn as_c(&self) -> sys::capsedge_image {
        sys::capsedge_image {
            pixels: self.pixels.as_ptr().cast(),
            type_: sys::CAPSEDGE_UINT8,
            height: self.height,
            width: self.width,
            channels: self.channels,
            stride: 0,
        }
    }
}

/// The results for a batch, and the memory to compute them in. One thread at a time.
pub struct Prediction {
    handle: *mut sys::capsedge_prediction,
}

// SAFETY: a prediction may move to another thread; `predict` takes it exclusively.
unsafe impl Send for Prediction {}

/// A class with its score and pose.
pub struct Label<'a> {
    pub name: String,
    pub index: i32,
    pub score: f64,
    pub pose: &'a [f32],
}

/// The result for one image, valid until the prediction is used again.
pub struct ImageResult<'a> {
    labels: &'a [sys::capsedge_label],
    pose_size: usize,
    /// "length" or "probability"; empty for a regression.
    pub score_kind: String,
    /// One per class.
    pub scores: &'a [f64],
    /// The values of a regression.
    pub values: &'a [f64],
    _prediction: PhantomData<&'a Prediction>,
}

impl<'a> ImageResult<'a> {
    /// Labels, best first.
    pub fn labels(&self) -> impl Iterator<Item = Label<'a>> + '_ {
        self.labels.iter().map(move |label| {
            // SAFETY: name and pose belong to the prediction, which 'a borrows.
            unsafe {
                Label {
                    name: text(label.name),
                    index: label.index,
                    score: label.score,
                    pose: view(label.pose, self.pose_size),
                }
            }
        })
    }
}

impl Prediction {
    pub fn new() -> Result<Prediction> {
        let mut handle = ptr::null_mut();
        // SAFETY: the library writes the handle.
        check(unsafe { sys::capsedge_prediction_create(&mut handle) })?;
        Ok(Prediction { handle })
    }

    /// The result for image `i`.
    pub fn answer(&self, i: usize) -> Result<ImageResult<'_>> {
        let mut found = sys::capsedge_result {
            size: size_of::<sys::capsedge_result>(),
            labels: ptr::null(),
            label_count: 0,
            scores: ptr::null(),
            poses: ptr::null(),
            class_count: 0,
            pose_size: 0,
            score_kind: ptr::null(),
            values: ptr::null(),
            value_count: 0,
        };
        // SAFETY: what the result points to belongs to the prediction, which the answer borrows.
        unsafe {
            check(sys::capsedge_prediction_result(self.handle, i, &mut found))?;
            Ok(ImageResult {
                labels: view(found.labels, found.label_count),
                pose_size: usize::try_from(found.pose_size).unwrap_or(0),
                score_kind: text(found.score_kind),
                scores: view(found.scores, usize::try_from(found.class_count).unwrap_or(0)),
                values: view(found.values, found.value_count),
                _prediction: PhantomData,
            })
        }
    }
}

impl Drop for Prediction {
    fn drop(&mut self) {
        // SAFETY: as for the session.
        unsafe { sys::capsedge_status_release(sys::capsedge_prediction_close(self.handle)) }
    }
}
