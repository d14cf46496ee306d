//! Finds libcapsedge: in CAPSEDGE_LIBDIR, otherwise where `capsedge config libdir` says.
use std::{env, process::Command};

fn libdir() -> String {
    println!("cargo:rerun-if-env-changed=CAPSEDGE_LIBDIR");
    if let Ok(folder) = env::var("CAPSEDGE_LIBDIR") {
        return folder;
    }
    let found = Command::new("capsedge").args(["config", "libdir"]).output();
    match found {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).trim().to_string(),
        Ok(done) => panic!("capsedge config libdir: {}", String::from_utf8_lossy(&done.stderr)),
        Err(error) => panic!("capsedge: {error}. Install it, or set CAPSEDGE_LIBDIR to the folder of libcapsedge.so."),
    }
}

fn main() {
    let folder = libdir();
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=capsedge");
    // On a device, copy libcapsedge.so beside the program.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}:$ORIGIN");
}
