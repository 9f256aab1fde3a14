// What all ranks do or say as one: rank 0 decides, or one error is thrown by all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.hpp"
#include "core/error.hpp"
#include "deck/deck.hpp"
#include "plan/setup.hpp"
#include "train/startup/restart.hpp"

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

// From the command line to a run that can start: the same on every rank, or one error for all,
// which names the first rank that has a problem, its host, and the way out.

/// All ranks run one build of the program: others would not speak with each other. Exit 1.
/// Collective, before anything else is.
void check_same_build(comm::MpiCommunicator& world);

/// What a rank's command line makes it do.
struct StartInfo {
  bool runs = true;   ///< false: it answers a question (--check), or fails
  int exit_code = 0;  ///< of its error
  std::string error = {};
};

/// Either all ranks run or none does; a rank that leaves would keep the others waiting. Throws
/// where that is not so, and where a rank other than 0 alone has an error: with the code of the
/// first error, else 2. Rank 0 says its own error when the others leave as well. Collective, once
/// builds agree.
void check_same_start(comm::MpiCommunicator& world, const StartInfo& info);

/// All ranks were started with the overrides of rank 0, and see the deck that it sees if they see
/// one. Exit 78. Collective.
void check_same_deck(comm::MpiCommunicator& world, const std::string& path,
                     const std::vector<std::string>& overrides);

/// Every rank has a GPU, all of one kind unless run.mixed_gpus; and NCCL need not use TCP sockets
/// between nodes that have InfiniBand. Exit 1. Collective; for run.device = cuda.
void check_gpus(comm::MpiCommunicator& world, const deck::Deck& deck);

/// All ranks see what rank 0 writes in `folder`, which exists on its host. Exit 74. Collective.
void check_shared_folder(comm::MpiCommunicator& world, const std::string& folder);

/// A deck checked against the number of ranks, with its vocabulary.
struct PreparedDeck {
  deck::Deck deck;
  plan::Vocabulary vocabulary;
};

/// Loads and checks the deck and the tokenizer on rank 0, and resolves the layout by `resolve`
/// (which gets the deck and the number of ranks), after check_same_deck(). Without `need_data` a
/// deck need not name its data. Collective; throws CollectiveError.
PreparedDeck prepare_deck(comm::MpiCommunicator& world, const std::string& path,
                          const std::vector<std::string>& overrides,
                          const std::function<void(deck::Deck&, std::int64_t)>& resolve,
                          bool need_data = true);

}  // namespace trireme::train
