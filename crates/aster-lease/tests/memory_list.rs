//! Listing the memory store: exactly the rows that are asked for, in order, page by page.
#![allow(clippy::unwrap_used, reason = "test code outside a #[test] function")]

mod support;

use aster_lease::{
    GrantId, LIST_PAGE_MAX, LeaseOp, LeaseSerializer, ListQuery, MemorySerializer,
    TransitionOutcome, Ttl,
};
use support::{TTL, principal};

/// Every third one is free again.
const ROWS: usize = 60;

fn name(number: usize) -> String {
    let kind = ["catalog", "index", "job"][number % 3];
    format!("{kind}/{:02}", number / 3)
}

fn is_held(number: usize) -> bool {
    !(number / 3).is_multiple_of(3)
}

async fn store() -> MemorySerializer {
    let store = MemorySerializer::new();
    for number in 0..ROWS {
        let op = LeaseOp::Acquire {
            candidate: principal("a"),
            ttl: Ttl::new(TTL).unwrap(),
            grant_id: GrantId::from_bytes([1; 16]),
        };
        let outcome = store.transition(&name(number), op).await.unwrap();
        let TransitionOutcome::Granted(fence) = outcome else {
            panic!("{outcome:?}")
        };
        if !is_held(number) {
            let (holder, epoch) = (fence.holder, fence.epoch);
            let release = LeaseOp::Release { holder, epoch };
            store.transition(&name(number), release).await.unwrap();
        }
    }
    store
}

/// What a list has to say, from the rows themselves.
fn expected(query: &ListQuery) -> Vec<String> {
    let rows = (0..ROWS).filter(|number| is_held(*number) || !query.held_only);
    let mut names: Vec<String> = rows
        .map(name)
        .filter(|name| name.starts_with(&query.prefix))
        .filter(|name| {
            query
                .after
                .as_deref()
                .is_none_or(|after| name.as_str() > after)
        })
        .collect();
    names.sort();
    names.truncate(query.page());
    names
}

async fn listed(store: &MemorySerializer, query: &ListQuery) -> Vec<String> {
    let rows = store.list(query.clone()).await.unwrap();
    rows.iter().map(|row| row.resource.to_string()).collect()
}

#[tokio::test]
async fn a_list_has_what_is_asked_for_and_nothing_else() {
    let store = store().await;
    for prefix in ["", "catalog/", "job/1", "jobs", "index/00"] {
        for after in [None, Some("catalog/07"), Some("index/00"), Some("zebra")] {
            for limit in [0, 1, 7, ROWS] {
                for held_only in [false, true] {
                    let query = ListQuery {
                        prefix: prefix.to_owned(),
                        after: after.map(|name| name.parse().unwrap()),
                        limit,
                        held_only,
                    };
                    assert_eq!(listed(&store, &query).await, expected(&query), "{query:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn page_after_page_gives_every_row_once() {
    let store = store().await;
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let limit = 7;
        let page = ListQuery {
            after,
            limit,
            ..ListQuery::default()
        };
        let rows = listed(&store, &page).await;
        let Some(last) = rows.last() else {
            break;
        };
        after = Some(last.parse().unwrap());
        all.extend(rows);
    }
    assert_eq!(all, expected(&ListQuery::default()));
    assert_eq!(all.len(), ROWS);
}

#[test]
fn a_page_has_a_bound() {
    for (limit, page) in [
        (0, LIST_PAGE_MAX),
        (1, 1),
        (LIST_PAGE_MAX, LIST_PAGE_MAX),
        (usize::MAX, LIST_PAGE_MAX),
    ] {
        let query = ListQuery {
            limit,
            ..ListQuery::default()
        };
        assert_eq!(query.page(), page);
    }
}
