//! The resource without the bug.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use aster::lease::{Fence, FenceRejection, MemorySerializer};

/// Headlines by page. Only who holds the lease of a page sets its headline.
#[derive(Clone, Default)]
pub struct Headlines {
    pub leases: MemorySerializer,
    headlines: Arc<Mutex<HashMap<String, String>>>,
}

impl Headlines {
    // begin: mended
    pub fn set(
        &self,
        fence: &Fence,
        writer: &str,
        headline: impl FnOnce() -> String,
    ) -> Result<(), FenceRejection> {
        self.leases.mutate_fenced(fence, writer, || {
            self.put(&fence.resource, headline());
        })
    }
    // end: mended

    pub fn get(&self, page: &str) -> Option<String> {
        let headlines = self
            .headlines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        headlines.get(page).cloned()
    }

    fn put(&self, page: &str, headline: String) {
        let mut headlines = self
            .headlines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        headlines.insert(page.to_owned(), headline);
    }
}
