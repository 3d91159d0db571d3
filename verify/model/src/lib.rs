//! Every order of events, up to a bound, over the real rules.
//!
//! The model calls `aster-core`'s [`transition`](fn@aster_core::transition) and
//! [`check_fence`](aster_core::check_fence); nothing of them is copied. Around them stand a serializer with its clock,
//! holders with clocks of their own, and a network that keeps messages for ever: a message that is never
//! delivered is lost, one that is delivered late is delayed, and a few are delivered twice.
//!
//! | file | what lives there |
//! |---|---|
//! | `bounds.rs` | how far the model goes, and the bugs that can be planted |
//! | `network.rs` | the messages |
//! | `store.rs` | the serializer: row, floor, queue, claim, restart, backup, restore |
//! | `holder.rs` | what a holder knows and does |
//! | `seen.rs` | what has come up in the steps that were explored |
//! | `worlds.rs` | the worlds that are explored, and the bugs that are planted |
//! | `truth.rs` | what really happened, kept apart from every row |
//! | `model.rs` | the actions, and the properties that must hold in every state |

mod bounds;
mod holder;
mod model;
mod network;
mod seen;
mod store;
mod truth;
mod worlds;

pub use bounds::{Bounds, Bug};
pub use model::{Action, LeaseModel, PROPERTIES, World};
pub use network::{Answer, Message, Request};
pub use seen::{Ingredient, Seen};
pub use truth::Broken;
pub use worlds::{CONTROLS, Control, FURTHER, Setting, WORLDS};
