// Checks of values from Python; a failure is a ValueError there.
#pragma once
#include <stdexcept>
#include <string>

namespace coil {

inline void check(bool right, const char *what) {
    if (!right) throw std::invalid_argument(what);
}

inline void check(bool right, const char *name, const char *what) {
    if (!right) throw std::invalid_argument(std::string(name) + " " + what);
}

}  // namespace coil
