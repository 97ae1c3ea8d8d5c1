#include "kernels.hpp"
#include "simd_neon.hpp"

namespace coil {

const Kernels &neon_kernels() { return kernels<Neon>(); }

}  // namespace coil
