//! Proof that `aster-core` needs no `std`: this library has its own panic handler, and if anything
//! it links brings `std`, there are two of them and the build fails.
#![no_std]

#[cfg(feature = "control-with-std")]
extern crate std;

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

use aster_core::{
    Authority, GrantId, Judged, LeaseOp, Principal, ResourceName, RowView, Ttl, TtlBounds,
    check_fence, transition,
};

struct NoMemory;

// SAFETY: answering null for every request is the documented way to say that memory is exhausted.
unsafe impl GlobalAlloc for NoMemory {
    unsafe fn alloc(&self, _layout: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _pointer: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static ALLOCATOR: NoMemory = NoMemory;

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Calls the core's rules, so that they are linked. It is never run.
#[unsafe(no_mangle)]
pub extern "C" fn aster_no_std_proof() -> bool {
    acquire_and_check().is_some()
}

fn acquire_and_check() -> Option<()> {
    let resource = ResourceName::new("proof").ok()?;
    let candidate = Principal::new("proof").ok()?;
    let view = RowView {
        authority: Authority::from_bytes([1; 16]),
        resource: &resource,
        floor: 0,
        row: None,
    };
    let acquire = LeaseOp::Acquire {
        candidate,
        ttl: Ttl::from_millis(1_000).ok()?,
        grant_id: GrantId::from_bytes([2; 16]),
    };
    let decision =
        transition(&view, &Judged::default(), &TtlBounds::default(), &acquire).ok()?;
    match decision.outcome {
        aster_core::TransitionOutcome::Granted(fence) => check_fence(&view, &fence, "proof").ok(),
        _ => None,
    }
}
