// The call stacks of a process that hangs: they show where.
#pragma once

#include <filesystem>

namespace trireme {

/// Names the file that write_stacks() appends to, and prepares the signal (SIGRTMAX - 3) that makes
/// threads note their stacks.
void keep_stacks(const std::filesystem::path& file);

/// Appends what each thread of this process does to the file of keep_stacks(), the main thread
/// first: "[rank 3] ", and the functions from the innermost one on, or the state of a thread that
/// does not react. Within some three seconds; again only after 10 seconds. Does nothing without
/// keep_stacks().
void write_stacks();

/// write_stacks() in its own thread: the storage may be what hangs.
void start_to_write_stacks();
/// Whether a thread of start_to_write_stacks() has not come to its end.
bool are_stacks_under_way();

}  // namespace trireme
