//! The services of an endpoint, and the security classes that they accept.

use crate::security::{Acceptor, RXNULL};

/// A service that clients may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Service id.
    pub id: u16,
    /// Accepted security classes; 0 is rxnull. The others need an [`crate::Acceptor`].
    pub classes: Vec<u8>,
}

pub(super) struct Services<P, D> {
    services: Vec<Service>,
    acceptors: Vec<Box<dyn Acceptor<P, D>>>,
}

impl<P, D> Services<P, D> {
    pub(super) const fn new() -> Services<P, D> {
        Services {
            services: Vec::new(),
            acceptors: Vec::new(),
        }
    }

    /// Adds a service, or replaces the one with this id.
    pub(super) fn add(&mut self, service: Service) {
        self.services.retain(|s| s.id != service.id);
        self.services.push(service);
    }

    /// Adds a security class, or replaces the one with this index.
    pub(super) fn add_class(&mut self, acceptor: Box<dyn Acceptor<P, D>>) {
        self.acceptors.retain(|a| a.index() != acceptor.index());
        self.acceptors.push(acceptor);
    }

    /// Checks whether the service with this id accepts `class`, and `class` is known.
    pub(super) fn accept(&self, id: u16, class: u8) -> bool {
        let service = self.services.iter().find(|s| s.id == id);
        let known = class == RXNULL || self.acceptors.iter().any(|a| a.index() == class);
        known && service.is_some_and(|s| s.classes.contains(&class))
    }

    pub(super) fn acceptor(&mut self, class: u8) -> Option<&mut Box<dyn Acceptor<P, D>>> {
        self.acceptors.iter_mut().find(|a| a.index() == class)
    }
}
