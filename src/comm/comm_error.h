// What a rank gets when its collectives cannot go on. Of all ranks of a world only one sees CommError: the one where
// the first fault was noticed. The others end with Aborted. Both are faults of the world, never of the input; wrong
// arguments to a communicator are FIVEFOLD_CHECKs.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace fivefold {

// A peer is lost, late, or calls something else. The text names ranks, group, operation and sequence number.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Another rank failed first; the text repeats its reason.
class Aborted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// what() of an exception, for reports that outlive it. REQUIRES: not null.
std::string error_text(const std::exception_ptr& error);

}  // namespace fivefold
