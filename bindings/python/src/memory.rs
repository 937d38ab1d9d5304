//! Memory that belongs to a Python object.

use std::ptr::NonNull;
use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// f32 values inside a Python object, which lives at least as long as this.
pub struct Memory {
    pointer: NonNull<f32>,
    length: usize,
    _owner: Py<PyAny>,
}

// SAFETY: the values are plain numbers without ties to a thread, and `Py` is `Send`.
unsafe impl Send for Memory {}

impl Memory {
    /// `length` values at the address `pointer`, kept alive by `owner`.
    pub fn new(owner: Py<PyAny>, pointer: usize, length: usize) -> PyResult<Self> {
        let values = NonNull::new(pointer as *mut f32).filter(|values| values.is_aligned());
        let pointer = values.ok_or_else(|| {
            PyValueError::new_err(format!(
                "{pointer:#x} is not the address of f32 values: it is null or not aligned"
            ))
        })?;
        Ok(Self { pointer, length, _owner: owner })
    }
}

impl AsMut<[f32]> for Memory {
    fn as_mut(&mut self) -> &mut [f32] {
        // SAFETY: the caller of `Client.all_reduce` says that `length` f32 values of `owner` are here, which `_owner` keeps
        // alive, and that nobody else touches them until the operation ends; `Memory` is dropped then.
        unsafe { slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }
}
