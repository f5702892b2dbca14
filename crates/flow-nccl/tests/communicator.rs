//! Communicators, against a library that has NCCL's names (`fake_nccl.c`): there is no NCCL without a GPU.

use flow_nccl::{Communicator, Nccl, NcclError};
use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Compiles a library of C.
fn compiled(folder: &TempDir, source: &Path) -> PathBuf {
    let library = folder.path().join("libnccl.so.2");
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([&library, source])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    library
}

fn fake(folder: &TempDir) -> PathBuf {
    compiled(
        folder,
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nccl.c"),
    )
}

/// What the fake counted: its enumeration has the meaning.
fn calls(library: &Path, of: c_int) -> c_int {
    // SAFETY: the library has no initialisers, and the function has this type.
    unsafe {
        let library = libloading::Library::new(library).unwrap();
        library
            .get::<unsafe extern "C" fn(c_int) -> c_int>(b"fake_calls")
            .unwrap()(of)
    }
}

const ABORT: c_int = 1;
const SEND: c_int = 2;
const RECEIVE: c_int = 3;
const GROUP_START: c_int = 4;
const GROUP_END: c_int = 5;
const ALL_REDUCE: c_int = 6;

#[test]
fn a_library_that_is_not_there_is_an_error_that_says_what_was_tried_and_what_to_install() {
    let error = Nccl::open(Some(Path::new("/nowhere/libnccl.so.2"))).unwrap_err();
    assert!(matches!(error, NcclError::NotFound { .. }));
    let words = error.to_string();
    for part in ["/nowhere/libnccl.so.2", "pip install nvidia-nccl-cu13"] {
        assert!(words.contains(part), "{words}");
    }
}

#[test]
fn a_library_that_lacks_a_function_is_too_old() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("old.c");
    std::fs::write(
        &source,
        "int ncclGetVersion(int *version) { *version = 2304; return 0; }",
    )
    .unwrap();
    let error = Nccl::open(Some(&compiled(&folder, &source))).unwrap_err();
    let words = error.to_string();
    assert!(
        words.contains("ncclGetUniqueId") && words.contains("2.18"),
        "{words}"
    );
}

#[test]
fn a_communicator_begins_groups_fails_in_words_and_is_aborted_once() {
    let folder = TempDir::new().unwrap();
    let library = fake(&folder);
    let nccl = Nccl::open(Some(&library)).unwrap();
    assert_eq!((nccl.version(), nccl.path()), (22_809, library.as_path()));
    let communicator = Communicator::begin(&nccl, nccl.unique_id().unwrap(), 1, 2).unwrap();
    assert_eq!((communicator.rank(), communicator.ranks()), (1, 2));
    let ready: Vec<bool> = (0..3).map(|_| communicator.is_ready().unwrap()).collect();
    assert_eq!(ready, [false, false, true]);

    let mut group = communicator.group(std::ptr::null_mut()).unwrap();
    // SAFETY: the fake touches no memory.
    unsafe {
        group.send(0, 3, 0).unwrap();
        group.receive(0, 3, 0).unwrap();
        group.all_reduce(0, 0, 3).unwrap();
    }
    group.end().unwrap();
    let counted = [SEND, RECEIVE, ALL_REDUCE, GROUP_START, GROUP_END].map(|of| calls(&library, of));
    assert_eq!(counted, [1, 1, 1, 1, 1]);

    // SAFETY: as above; the library has a function of this type.
    unsafe {
        let fake = libloading::Library::new(&library).unwrap();
        fake.get::<unsafe extern "C" fn(c_int)>(b"fake_send_fails")
            .unwrap()(2);
    }
    let mut group = communicator.group(std::ptr::null_mut()).unwrap();
    // SAFETY: as above.
    let error = unsafe { group.send(0, 3, 0) }.unwrap_err();
    let words = error.to_string();
    for part in [
        "ncclSend",
        "unhandled system error",
        "shared memory segment",
        "/dev/shm",
    ] {
        assert!(words.contains(part), "{words}");
    }
    drop(group);
    let [started, ended] = [GROUP_START, GROUP_END].map(|of| calls(&library, of));
    assert_eq!(started, ended, "a group that failed is closed, too");

    communicator.abort();
    let error = communicator.is_ready().unwrap_err();
    assert_eq!(
        error,
        NcclError::Aborted {
            call: "ncclCommGetAsyncError"
        }
    );
    drop(communicator);
    assert_eq!(calls(&library, ABORT), 1);
}
