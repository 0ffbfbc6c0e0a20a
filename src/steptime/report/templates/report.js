(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18) + "px";
  };
  for (const mark of document.querySelectorAll("svg .tip")) {
    const title = mark.querySelector("title");
    mark.dataset.tip = title.textContent;
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
    mark.addEventListener("pointermove", (event) => show(mark, event.clientX, event.clientY));
    mark.addEventListener("pointerleave", hide);
    mark.addEventListener("focus", () => {
      const box = mark.getBoundingClientRect();
      show(mark, box.left + box.width / 2, box.bottom - 14);
    });
    mark.addEventListener("blur", hide);
  }
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
