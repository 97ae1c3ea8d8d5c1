#include "kernels.hpp"
#include "simd_portable.hpp"

namespace coil {

const Kernels &portable_kernels() { return kernels<Portable>(); }

}  // namespace coil
