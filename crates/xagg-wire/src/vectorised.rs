//! Loops over lanes, as wide as the processor can.

/// Runs a loop as this processor does it best: compiled for the widest vectors that it has.
#[inline(always)]
pub fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    struct Work<F>(F);
    impl<R, F: FnOnce() -> R> pulp::NullaryFnOnce for Work<F> {
        type Output = R;
        #[inline(always)]
        fn call(self) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Work(work))
}
