#include "kernels.hpp"
#include "simd_avx512.hpp"

namespace coil {

const Kernels &avx512_kernels() { return kernels<Avx512>(); }

}  // namespace coil
