// Buttons that copy the text beside them: by the clipboard where the page may use it, else by a selection.
(() => {
  for (const button of document.querySelectorAll("[data-copy]")) {
    const source = document.getElementById(button.dataset.copy);
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copied(source);
      button.textContent = done ? "Copied" : "Selected: press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  async function copied(source) {
    try {
      await navigator.clipboard.writeText(source.textContent); // only where the page was served securely
      return true;
    } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return document.execCommand("copy"); // a page from a file has nothing else
    }
  }
})();
