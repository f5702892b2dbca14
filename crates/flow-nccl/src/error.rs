//! Errors of NCCL, in words.

/// Why NCCL does not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NcclError {
    /// No library.
    #[error(
        "NVIDIA's NCCL is not found (tried: {tried}). Install it (`pip install nvidia-nccl-cu13`, or your distribution's package \
         `libnccl2`), or say where `libnccl.so.2` is"
    )]
    NotFound {
        /// What was tried, and why each did not do.
        tried: String,
    },
    /// A library without a function that is needed.
    #[error("{path} has no function `{function}`: NCCL 2.18 or newer is needed")]
    TooOld {
        /// The library.
        path: String,
        /// What it lacks.
        function: &'static str,
    },
    /// A call that failed.
    #[error("NCCL's `{call}` failed: {what} ({code}){}. {}", said(.last), help(*.code))]
    Failed {
        /// The function.
        call: &'static str,
        /// NCCL's code.
        code: i32,
        /// NCCL's words for the code.
        what: String,
        /// The last message of NCCL; may be empty.
        last: String,
    },
    /// A communicator that was aborted.
    #[error("NCCL's `{call}` was not called: the communicator was aborted before")]
    Aborted {
        /// The function.
        call: &'static str,
    },
}

fn said(last: &str) -> String {
    match last.trim() {
        "" => String::new(),
        last => format!(", {last}"),
    }
}

/// What usually helps, by `ncclResult_t` of nccl.h.
fn help(code: i32) -> &'static str {
    match code {
        1 => {
            "Often two processes have the same GPU, or GPU and driver do not fit the library; `NCCL_DEBUG=WARN` in the environment says more"
        }
        2 => {
            "Often /dev/shm is too small (containers: `--shm-size=1g` or `--ipc=host`), or a network is not reachable; `NCCL_DEBUG=WARN` in \
             the environment says more"
        }
        5 => {
            "Start as many processes as this machine has GPUs, one for each; `NCCL_DEBUG=WARN` in the environment says more"
        }
        6 => "Another process of the run ended or cannot be reached; its own output says more",
        _ => "`NCCL_DEBUG=WARN` in the environment says more",
    }
}
