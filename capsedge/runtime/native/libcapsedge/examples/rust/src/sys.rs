//! The part of capsedge.h that this example calls, declared as the header does.
#![allow(non_camel_case_types)]

use std::os::raw::{c_char, c_void};

#[repr(C)]
pub struct capsedge_status {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct capsedge_session {
    _opaque: [u8; 0],
}
#[repr(C)]
pub struct capsedge_prediction {
    _opaque: [u8; 0],
}

pub const CAPSEDGE_UINT8: i32 = 2;

#[repr(C)]
pub struct capsedge_open_options {
    pub size: usize,
    pub threads: i32,
    pub ops: i32,
    pub onnxruntime: *const c_char,
    pub outputs: *const *const c_char,
    pub output_count: usize,
    pub tensorrt: *const c_char,
    pub device: i32,
    pub contexts: usize,
}

#[repr(C)]
pub struct capsedge_image {
    pub pixels: *const c_void,
    pub type_: i32,
    pub height: i32,
    pub width: i32,
    pub channels: i32,
    pub stride: i64,
}

#[repr(C)]
pub struct capsedge_predict_options {
    pub size: usize,
    pub top_k: i32,
    pub use_threshold: i32,
    pub threshold: f64,
    pub invert: i32,
}

#[repr(C)]
pub struct capsedge_label {
    pub name: *const c_char,
    pub pose: *const f32,
    pub score: f64,
    pub index: i32,
}

#[repr(C)]
pub struct capsedge_result {
    pub size: usize,
    pub labels: *const capsedge_label,
    pub label_count: usize,
    pub scores: *const f64,
    pub poses: *const f32,
    pub class_count: i32,
    pub pose_size: i32,
    pub score_kind: *const c_char,
    pub values: *const f64,
    pub value_count: usize,
    pub atypical: *const c_char,
    pub escalated: i32,
    pub mask: *const u8,
    pub mask_height: i32,
    pub mask_width: i32,
}

extern "C" {
    pub fn capsedge_status_code(status: *const capsedge_status) -> i32;
    pub fn capsedge_status_message(status: *const capsedge_status) -> *const c_char;
    pub fn capsedge_status_release(status: *mut capsedge_status);
    pub fn capsedge_open(
        path: *const c_char,
        options: *const capsedge_open_options,
        session: *mut *mut capsedge_session,
    ) -> *mut capsedge_status;
    pub fn capsedge_close(session: *mut capsedge_session) -> *mut capsedge_status;
    pub fn capsedge_class_name(
        session: *mut capsedge_session,
        index: i32,
        name: *mut *const c_char,
    ) -> *mut capsedge_status;
    pub fn capsedge_value_name(
        session: *mut capsedge_session,
        index: usize,
        name: *mut *const c_char,
        unit: *mut *const c_char,
    ) -> *mut capsedge_status;
    pub fn capsedge_prediction_create(prediction: *mut *mut capsedge_prediction) -> *mut capsedge_status;
    pub fn capsedge_prediction_close(prediction: *mut capsedge_prediction) -> *mut capsedge_status;
    pub fn capsedge_predict(
        session: *mut capsedge_session,
        images: *const capsedge_image,
        count: usize,
        options: *const capsedge_predict_options,
        prediction: *mut capsedge_prediction,
    ) -> *mut capsedge_status;
    pub fn capsedge_prediction_result(
        prediction: *mut capsedge_prediction,
        image: usize,
        result: *mut capsedge_result,
    ) -> *mut capsedge_status;
}
