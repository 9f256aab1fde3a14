// What all ranks do or say as one: rank 0 decides, or one error is thrown by all.
#pragma once

#include <functional>
#include <string>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"

namespace trireme::train {

/// An error that every rank throws alike: one of them prints it, all return its code.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

/// `text` of rank 0 on every rank. Collective over `world`.
std::string broadcast_text(comm::MpiCommunicator& world, std::string text);

/// Runs `work` on rank 0 and returns its text on every rank. What it throws becomes a
/// CollectiveError with the same message and code on every rank. Collective over `world`.
std::string on_rank_zero(comm::MpiCommunicator& world, const std::function<std::string()>& work);

/// Runs `work`, which throws the same IoError, DataError, DeckError or UsageError on every rank,
/// and throws that as a CollectiveError: one rank prints it.
void throw_collectively(const std::function<void()>& work);

/// The `problem` of the first rank that has one, with its rank and host, and how many more there
/// are; "" where none has. The same on all ranks. Collective over `world`.
std::string first_problem(comm::MpiCommunicator& world, const std::string& problem);

/// Throws CollectiveError with `code` on all ranks when the `problem` of some is not empty: the
/// first of these, with its rank and host, and how many more there are. Collective over `world`.
void refuse(comm::MpiCommunicator& world, ExitCode code, const std::string& problem);

}  // namespace trireme::train
