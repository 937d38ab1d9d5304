//! Running a program on a frame that we make (BPF_PROG_TEST_RUN).

use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// What a program did with a frame.
pub(super) struct Ran {
    /// XDP_DROP, XDP_TX, ...
    pub action: u32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

/// Room for the largest frame of a job.
const FRAME_ROOM: usize = 4096;

/// Runs the program once; nothing leaves an interface.
pub(super) fn dry(program: &OwnedFd, frame: &[u8]) -> Result<Ran, Error> {
    let mut out = vec![0; FRAME_ROOM];
    let mut options = libbpf_sys::bpf_test_run_opts {
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..options()
    };
    test_run(program, &mut options)?;
    out.truncate(options.data_size_out as usize);
    Ok(Ran { action: options.retval, frame: out })
}

/// Runs the program so many times on a frame, which each run must leave as it is; nanoseconds a run.
pub(super) fn timed(program: &OwnedFd, frame: &[u8], runs: u32) -> Result<u32, Error> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        repeat: runs.cast_signed(),
        ..options()
    };
    test_run(program, &mut options)?;
    Ok(options.duration)
}

fn options() -> libbpf_sys::bpf_test_run_opts {
    libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    }
}

fn test_run(program: &OwnedFd, options: &mut libbpf_sys::bpf_test_run_opts) -> Result<(), Error> {
    // SAFETY: the descriptor is that of a loaded program; buffers and lengths in the options belong together and outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), options) };
    if result == 0 { Ok(()) } else { Err(Error::from_raw_os_error(-result)) }
}
