// The table of keys, one row per key, put together from its groups.
#include "deck/keys/groups.hpp"

namespace trireme::deck {

const std::vector<Key>& keys() {
  static const std::vector<Key> table = [] {
    std::vector<Key> rows;
    run_keys(rows);
    model_keys(rows);
    parallel_keys(rows);
    arithmetic_keys(rows);
    optimizer_keys(rows);
    data_keys(rows);
    train_keys(rows);
    log_keys(rows);
    sweep_keys(rows);
    return rows;
  }();
  return table;
}

}  // namespace trireme::deck
