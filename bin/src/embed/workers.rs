//! The workers that all handles of a process share. Passes of several engines take turns with them job by job, so two
//! handles use as many cores as one.

use std::sync::{Arc, Weak};

use engine::exec::Pool;
use parking_lot::Mutex;

use super::OpenError;
use crate::serve::start::LoadError;

/// The pool, while a handle has it.
static POOL: Mutex<Weak<Pool>> = Mutex::new(Weak::new());

/// The pool of the process: the one that there is, else one of `asked` workers, or of `usual` where nothing is asked.
///
/// # Errors
/// If one of another size is there, or the system gives no threads.
pub(super) fn shared(asked: Option<usize>, usual: usize) -> Result<Arc<Pool>, OpenError> {
    let mut known = POOL.lock();
    if let Some(pool) = known.upgrade() {
        return size(Some(&pool), asked, usual).map(|_| pool);
    }
    let pool = Arc::new(Pool::start(size(None, asked, usual)?).map_err(LoadError::Workers)?);
    *known = Arc::downgrade(&pool);
    Ok(pool)
}

/// How many workers [`shared`] would give.
///
/// # Errors
/// As that.
pub(super) fn foreseen(asked: Option<usize>, usual: usize) -> Result<usize, OpenError> {
    size(POOL.lock().upgrade().as_deref(), asked, usual)
}

fn size(pool: Option<&Pool>, asked: Option<usize>, usual: usize) -> Result<usize, OpenError> {
    match (pool.map(Pool::threads), asked) {
        (Some(there), Some(threads)) if there != threads => Err(OpenError::Config(format!(
            "threads {threads}: the open handles of this process share {there} workers; leave threads out, or close them \
             first"
        ))),
        (Some(there), _) => Ok(there),
        (None, asked) => Ok(asked.unwrap_or(usual)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pool_serves_all_while_one_has_it() {
        let first = shared(Some(2), 9).unwrap();
        let second = shared(None, 9).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && first.threads() == 2);
        let refused = shared(Some(3), 9).err().unwrap();
        assert!(refused.code() == 2 && refused.to_string().contains("share 2 workers"), "{refused}");
        assert_eq!(foreseen(Some(3), 9).unwrap_err().to_string(), refused.to_string());
        assert_eq!(foreseen(None, 9).unwrap(), 2);
        drop((first, second));
        assert_eq!(foreseen(None, 9).unwrap(), 9);
        assert_eq!(shared(Some(3), 9).unwrap().threads(), 3);
    }
}
