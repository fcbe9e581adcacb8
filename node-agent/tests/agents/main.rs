//! Agents on loopback, driven through their control API as an operator drives them.

#[cfg(test)]
mod certificates;
#[cfg(test)]
mod claims;
#[cfg(test)]
mod copies;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod discard;
#[cfg(test)]
mod enroll;
#[cfg(test)]
mod eventually;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod in_use;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod kept;
#[cfg(test)]
mod limits;
mod links;
#[cfg(test)]
mod local;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod metrics_access;
#[cfg(test)]
mod nics;
#[cfg(test)]
mod objects;
#[cfg(test)]
mod operator;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod s3_server;
#[cfg(test)]
mod support;
#[cfg(test)]
mod transfer;
#[cfg(test)]
mod volumes;
