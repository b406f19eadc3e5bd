//! emit: deltas and events go to the front end as far as the channel has room. Leaves true: a row whose event waits is
//! stalled until it is sent; the tick never waits.

use crossbeam::channel::{Sender, TrySendError};

use crate::api::Event;
use crate::tables::outbox::Outbox;
use crate::tables::pages::Pages;
use crate::tables::requests::Requests;
use crate::world::Life;

/// Sends what can be sent; whether anything was.
pub fn emit(
    requests: &mut Requests,
    pages: &mut Pages,
    outbox: &mut Outbox,
    life: &mut Life,
    events: &Sender<Event>,
) -> bool {
    for i in 0..requests.live.len() {
        let slot = requests.live[i];
        let ticket = requests.ticket[slot.index()];
        // What a row says while others of its events wait would have no bound; it says what came of it all later.
        let blocked = requests.blocked[slot.index()];
        if !blocked {
            outbox.close_prompt(slot, ticket);
        }
        outbox.close_delta(slot, ticket);
        if !blocked && let Some((held, free)) = pages.news(slot) {
            outbox.push(Event::Pages { ticket, held, free });
        }
    }
    let mut any = false;
    while let Some(event) = outbox.pop() {
        match events.try_send(event) {
            Ok(()) => any = true,
            Err(TrySendError::Full(event)) => {
                outbox.unpop(event);
                break;
            }
            Err(TrySendError::Disconnected(_)) => {
                // Nobody listens any more.
                life.stopping = true;
                break;
            }
        }
    }
    requests.blocked.fill(false);
    for event in outbox.waiting() {
        if let Some(slot) = requests.find(event.ticket()) {
            requests.blocked[slot.index()] = true;
        }
    }
    any
}
