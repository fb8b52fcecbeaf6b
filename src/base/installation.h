// Installation: where the files lie that fivefold opens while it runs and that are not beside the program. The
// libraries only declare it. What links them defines it: in the source tree a file that the build writes, for other
// projects one that the package (find_package(fivefold)) writes into their build. So an installed library holds no path
// of the machine that it was built on, and an installation can be moved. Thread-safe: no state.
#pragma once

namespace fivefold {

struct Installation {
  const char* configs;         // folder of models/, gpus/ and clusters/
  const char* engine_library;  // libfivefold_engine.so; absent when fivefold was built without the engine
};

Installation installation();

}  // namespace fivefold
